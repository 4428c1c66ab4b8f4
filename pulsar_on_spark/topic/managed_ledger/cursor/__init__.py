"""A broker subscription's cursor: acknowledged messages, cursor records, and the handover between broker and Spark."""
