"""What the library costs: rows that are measured, each against a named alternative, and the page that reports them."""
