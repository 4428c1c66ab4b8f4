"""Topics' life: what is trimmed and why the rest is kept, how old a backlog is, what its quota asks for.

Decisions are pure functions of a metadata view, cursors and a clock's value: `holders.py` says who may still need what,
`retention.py` what may go, `preview.py` what would, `quotas.py` and `ages.py` what a backlog is held against. Only
`trim.py` commits: `maintain` calls it, and so does a broker, whose `broker.lifecycle` also does what takes clients or
cursors.
"""
