-- title: All figures
-- asks: What are the median, the 95th percentile and the other statistics of each cell?
SELECT
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.device,
  f.league,
  f.cell_id,
  f.run_id,
  -- The former name is in findings computed before record schema version 4.
  IF(f.metric = 'times.seed_total_time_s', 'times.suite_total_time_s', f.metric) AS metric,
  f.estimate,
  f.low,
  f.high,
  f.unit,
  f.count AS processes
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'figure'
WHERE
  f.estimate IS NOT NULL
  AND f.metric NOT LIKE 'task.metrics.%'
  AND f.workload NOT LIKE 'task %'
  AND (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
ORDER BY f.work, f.work_id, f.backend, metric
