"""The call `dpfed.run(...)`, and with it `dpfed run`: build, run in an engine, show progress, write the report."""
