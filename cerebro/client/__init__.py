"""What a notebook uses: experiments, their runs and results."""
