"""Run the command line as ``python -m notsodeep``."""

from notsodeep.cli.main import main

if __name__ == "__main__":
    main()
