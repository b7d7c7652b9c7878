"""The links between nodes, measured in rotating pairs and compared with each other."""
