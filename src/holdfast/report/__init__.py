"""Turn records into tables, plots and one HTML page."""
