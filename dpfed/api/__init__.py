"""The function `dpfed.run(...)`, which `dpfed run` calls: build a run, train, show progress, write the report."""
