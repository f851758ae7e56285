"""A taught model over HTTP: predictions while it learns, versions, and a page to teach it by hand. Extra `serve`."""
