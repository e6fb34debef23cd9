"""Take, renew and inspect leases."""
