"""`python -m app` is the console script."""

from app.cli import main

main()
