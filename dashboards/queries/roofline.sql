-- title: Roofline
-- asks: What share of the measured peak of its machine does a cell use?
SELECT
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.device,
  f.cell_id,
  f.run_id,
  MAX(IF(f.metric = 'intensity_flop_per_byte', f.estimate, NULL)) AS intensity_flop_per_byte,
  MAX(IF(f.metric = 'achieved_flop_per_s', f.estimate, NULL)) AS achieved_flop_per_s,
  MAX(IF(f.metric = 'roof_flop_per_s', f.estimate, NULL)) AS roof_flop_per_s,
  MAX(IF(f.metric = 'peak_flop_per_s', f.estimate, NULL)) AS peak_flop_per_s,
  MAX(IF(f.metric = 'share_of_peak', f.estimate, NULL)) AS share_of_peak,
  MAX(IF(f.metric = 'share_of_peak', f.low, NULL)) AS low,
  MAX(IF(f.metric = 'share_of_peak', f.high, NULL)) AS high,
  MAX(IF(f.metric = 'mfu', f.estimate, NULL)) AS mfu
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'peak'
WHERE
  (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
GROUP BY f.work, f.work_id, f.workload, f.backend, f.device, f.cell_id, f.run_id
ORDER BY f.work, f.work_id, f.backend, f.cell_id
