"""What a run tells the outside: files, live view, timeline, report.

Import from the modules: `composite.make_reporter` makes the reporter of a run,
`reporter.Reporter` is what the runtime calls.
"""
