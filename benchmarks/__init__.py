"""What is measured, and against whom.

Each module here is a benchmark that `vfm bench NAME` runs. It holds `HELP` (its first line says
what it measures), `Settings` (a keyword-only dataclass with a default for every field) and
`measure(settings) -> Iterator[Row]`. Subjects are compared in one run. Modules whose names begin
with an underscore, and `row`, are helpers.
"""
