"""The watchdog's brain and detectors in virtual time, against a modelled fleet: what failures make of a run."""
