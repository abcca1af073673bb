"""The page of registered models: versions, aliases and downloads. Also registers models of experiments."""
