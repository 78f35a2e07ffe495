-- title: Memory
-- asks: How much memory does a process reach at its peak, on the host and on the device?
SELECT
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.device,
  f.cell_id,
  f.run_id,
  MAX(IF(f.metric = 'memory.peak_host_memory_bytes', f.estimate, NULL)) AS host_bytes,
  MAX(IF(f.metric = 'usage.host_anonymous.peak_bytes', f.estimate, NULL)) AS anonymous_bytes,
  MAX(IF(f.metric = 'memory.peak_device_memory_bytes', f.estimate, NULL)) AS device_bytes,
  MAX(IF(f.metric = 'usage.joules_per_sample', f.estimate, NULL)) AS joules_per_sample,
  MAX(IF(f.metric = 'usage.device_average_power_w', f.estimate, NULL)) AS device_power_w
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'figure'
WHERE
  f.metric IN (
    'memory.peak_host_memory_bytes', 'memory.peak_device_memory_bytes',
    'usage.host_anonymous.peak_bytes', 'usage.joules_per_sample', 'usage.device_average_power_w'
  )
  AND (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
GROUP BY f.work, f.work_id, f.workload, f.backend, f.device, f.cell_id, f.run_id
ORDER BY f.work, f.work_id, f.backend
