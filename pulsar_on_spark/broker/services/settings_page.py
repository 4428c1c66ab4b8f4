"""Generator of the page of all settings, run as `python -m pulsar_on_spark.broker.services.settings_page`."""

from __future__ import annotations

import ast
import inspect
import json
import sys

from pydantic import SecretStr

from pulsar_on_spark.broker.runtime.settings import ENVIRONMENT_PREFIX, BrokerSettings
from pulsar_on_spark.broker.services.settings_changes import DYNAMIC

HEAD = f"""# Configuration

All settings of a [broker](broker.md), with their defaults. `python -m
pulsar_on_spark.broker.services.settings_page > docs/configuration.md` writes this page from
`broker/runtime/settings.py`.

Settings come from a TOML file (`--config FILE`), from the environment (`{ENVIRONMENT_PREFIX}` and the name
in capitals) and from flags of the command line; later ones win. Names and defaults are Pulsar's, in
snake case, unless the description says otherwise. A [policy](lifecycle.md) of a namespace or topic
wins over the setting. 0 means no limit if a limit may be 0. An unknown or invalid setting in the
file or a flag keeps the broker from starting, and the error names it.

Settings with a star can be changed while the broker runs (`pulsar-admin brokers
update-dynamic-config`, or the [admin API](admin.md#settings-that-change)). A change applies to all
brokers of the root within two seconds, and wins over file, environment and flags of later ones.

```toml
broker_service_port = 6650
bind_address = "0.0.0.0"
advertised_address = "broker-1.example.com"
default_retention_time_in_minutes = 10080
```

| setting | default | |
|---|---|---|
"""


def page() -> str:
    """Return the page of all settings in Markdown, made from the definition of `BrokerSettings`."""
    rows = []
    for name, meaning in _docstrings().items():
        value = BrokerSettings.model_fields[name].default
        # No secret has a default.
        default = json.dumps("" if value is None or isinstance(value, SecretStr) else value)
        star = " *" if name in DYNAMIC else ""
        rows.append(f"| `{name}`{star} | `{default}` | {meaning} |")
    return HEAD + "\n".join(rows) + "\n"


def _docstrings() -> dict[str, str]:
    """Return the docstring below each field by the field's name, from the source, because pydantic does not keep it."""
    (definition,) = ast.parse(inspect.getsource(BrokerSettings)).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(below, ast.Expr), field.target.id
            assert isinstance(below.value, ast.Constant), field.target.id
            texts[field.target.id] = " ".join(str(below.value.value).split())
    return texts


if __name__ == "__main__":
    sys.stdout.write(page())
