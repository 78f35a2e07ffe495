-- title: Input stalls
-- asks: What share of a step does training wait for its input, night after night, where, and what limits it?
-- null: a part that its interval does not separate from zero
SELECT
  f.run_id,
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.device,
  f.cell_id,
  MAX(r.machine_host_id) AS machine,
  MAX(IF(f.metric = 'input.stall_share', f.estimate, NULL)) AS stall_share,
  MAX(IF(f.metric = 'input.stall_share', f.low, NULL)) AS low,
  MAX(IF(f.metric = 'input.stall_share', f.high, NULL)) AS high,
  MAX(IF(f.metric = 'input.stall_share', f.count, NULL)) AS blocks,
  MAX(IF(f.metric = 'input.compute_share', f.estimate, NULL)) AS compute_share,
  MAX(
    IF(f.metric = 'input.fetch_share' AND IFNULL(f.low, f.estimate) > 0, f.estimate, NULL)
  ) AS fetch_share,
  MAX(
    IF(f.metric = 'input.preparation_share' AND IFNULL(f.low, f.estimate) > 0, f.estimate, NULL)
  ) AS preparation_share,
  MAX(
    IF(f.metric = 'input.batching_and_copy_share' AND IFNULL(f.low, f.estimate) > 0, f.estimate, NULL)
  ) AS batching_and_copy_share,
  MAX(
    IF(f.metric = 'input.interference_share' AND IFNULL(f.low, f.estimate) > 0, f.estimate, NULL)
  ) AS interference_share,
  MAX(IF(f.metric = 'input.input_bound_share', f.estimate, NULL)) AS input_bound_share,
  MAX(IF(f.metric = 'input.ceiling_speed_up', f.estimate, NULL)) AS ceiling_speed_up,
  MAX(IF(f.metric = 'input.ceiling_speed_up', f.verdict, NULL)) AS bottleneck
FROM latest_findings AS f
JOIN runs AS r
  ON r.run_id = f.run_id
WHERE
  f.kind = 'input'
  AND r.fault IS NULL
  AND (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
  AND r.day >= CAST(@since AS DATE)
GROUP BY f.run_id, f.work, f.work_id, f.workload, f.backend, f.device, f.cell_id
ORDER BY f.workload, f.backend, f.cell_id, machine, f.run_id
