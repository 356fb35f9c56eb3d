"""Tables and figures from records. No torch in here."""
