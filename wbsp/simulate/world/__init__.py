"""Virtual time, links and machines; no synchronization model is known here."""
