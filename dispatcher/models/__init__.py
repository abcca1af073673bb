"""The tab Models: table of a run's models, comparison, and a page per model.

`view` computes the table and one model's details, `query` implements the filter language, `comparison` and `changes`
compute their sections, `page` and `model_page` have the routes. `dispatcher.read_models.model_table` has the rows.
"""
