"""Named ways through the pipeline: which stages run, for which device."""
