-- title: External commands
-- asks: What is the primary metric of each external command, and how does it compare?
SELECT
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.cell_id,
  f.run_id,
  REPLACE(f.metric, 'task.metrics.', '') AS metric,
  f.estimate AS value,
  f.low,
  f.high,
  f.unit,
  f.count AS processes,
  f.verdict AS status,
  f.said AS failures,
  r.estimate AS ratio,
  r.low AS ratio_low,
  r.high AS ratio_high,
  v.said AS verdict
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'figure' AND f.metric LIKE 'task.metrics.%'
LEFT JOIN latest_findings AS r
  ON r.run_id = f.run_id AND r.cell_id = f.cell_id AND r.kind = 'ratio'
LEFT JOIN latest_findings AS v
  ON v.run_id = f.run_id AND v.work_id = f.work_id AND v.kind = 'verdict'
WHERE
  (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
ORDER BY f.work, f.work_id, f.backend
