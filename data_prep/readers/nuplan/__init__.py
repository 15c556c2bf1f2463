"""nuPlan: logs as SQLite databases, maps as GeoPackages."""
