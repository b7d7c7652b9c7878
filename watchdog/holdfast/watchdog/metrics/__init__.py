"""The watchdog's metrics: the table of all of them, what is counted, and the text Prometheus reads."""
