"""The page Start: a form that creates experiments, with checks of code and locators.

`form` validates fields. `locator_check` reads locators in a child process (`locator_process`, with `locator_sources`
and `locator_network` as its limits). `experiment_file` reads an experiment file in a child process (`file_process`).
"""
