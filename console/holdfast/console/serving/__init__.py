"""The HTTP service: what each path answers, who may read it, and the page."""
