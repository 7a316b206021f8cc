"""The verbs of the live control plane. They talk to a server and know nothing of how it works."""
