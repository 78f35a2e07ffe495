-- The newest run that measured each cell, without runs with an injected fault.
SELECT
  f.cell_id,
  MAX(f.run_id) AS run_id
FROM latest_findings AS f
JOIN runs AS r
  ON r.run_id = f.run_id
WHERE
  f.kind = 'figure'
  AND (f.metric = 'times.step_time_s' OR f.metric LIKE 'task.metrics.%')
  AND r.fault IS NULL
  AND r.day >= CAST(@since AS DATE)
GROUP BY f.cell_id
