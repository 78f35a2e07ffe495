-- The current findings: those of each run's last revision. Dashboards read these.
SELECT f.*
FROM findings AS f
JOIN (
  SELECT run_id, MAX(revision) AS revision
  FROM findings
  WHERE day >= CAST(@since AS DATE)
  GROUP BY run_id
) AS last
  ON last.run_id = f.run_id AND last.revision = f.revision
WHERE f.day >= CAST(@since AS DATE)
