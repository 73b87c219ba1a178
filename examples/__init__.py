"""Programs to run and read; each is tested as it stands."""
