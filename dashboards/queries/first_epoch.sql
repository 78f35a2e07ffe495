-- title: First epoch against steady
-- asks: How long do build, trace and compile delay the first epoch?
SELECT
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.device,
  f.cell_id,
  f.run_id,
  MAX(IF(f.metric = 'times.first_epoch_time_s', f.estimate, NULL)) AS first_epoch_time_s,
  MAX(IF(f.metric = 'times.epoch_time_median_s', f.estimate, NULL)) AS steady_epoch_time_s,
  MAX(IF(f.metric = 'times.first_step_time_s', f.estimate, NULL)) AS first_step_time_s
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'figure'
WHERE
  f.metric IN (
    'times.first_epoch_time_s', 'times.epoch_time_median_s', 'times.first_step_time_s'
  )
  AND (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
GROUP BY f.work, f.work_id, f.workload, f.backend, f.device, f.cell_id, f.run_id
ORDER BY f.work, f.work_id, f.backend
