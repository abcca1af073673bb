"""Forms that add, clone, change, extend and prioritize models. Each shows its effect before it is sent.

`form` parses input into a command, `view` computes fields and differences, `notes` describes consequences, `page` has
the routes. `dispatcher.commands.page.execute` sends the command.
"""
