"""Run fresh seeds for a while: `python -m tests.simulators.journal --seconds 60 [--seed S]`."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from tests.simulators.journal.search import ALL_PROFILES, search, trace_of


def main() -> int:
    """Run the command; 1 if an invariant does not hold."""
    parser = argparse.ArgumentParser(prog="journal_sim", description="Simulate the journal's protocol.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run fresh seeds")
    parser.add_argument("--seed", type=int, help="the first seed; without it a random one")
    parser.add_argument("--profile", help="this profile only")
    parser.add_argument("--trace", action="store_true", help="print each step of the run of --seed and --profile")
    arguments = parser.parse_args()
    if arguments.trace:
        print("\n".join(trace_of(arguments.profile, arguments.seed)))
        return 0
    first = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 40)
    print(f"seed {first}")
    begin = time.monotonic()
    result = search(
        first,
        until=lambda _: time.monotonic() - begin > arguments.seconds,
        profile=arguments.profile,
        among=ALL_PROFILES,
    )
    took_s = time.monotonic() - begin
    print(f"{result.runs} runs, {result.steps} steps, {result.steps / took_s:,.0f} steps/s")
    print(", ".join(f"{name} {count}" for name, count in sorted(result.events.items())))
    if result.violation is not None:
        print(result.violation)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
