"""The tab Logs: output of attempts, followed while they run, with search.

`view` selects attempts from the event log. `log_reader` reads their files in bounded pieces, `terminal` converts
terminal output to lines. `search` runs in a child process, because user output and regular expressions are not
trusted. Workers write the files; nothing here changes or deletes them.
"""
