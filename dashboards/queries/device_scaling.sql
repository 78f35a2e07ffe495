-- title: Scaling by devices
-- asks: What does a Keras workload gain from several devices, and what share of a step goes into communication?
SELECT
  f.backend,
  JSON_VALUE(f.facts, '$."divided work"') AS divided_work,
  JSON_VALUE(f.facts, '$.distribution') AS distribution,
  CAST(JSON_VALUE(f.facts, '$.devices') AS INT64) AS devices,
  JSON_VALUE(f.facts, '$.fit') AS fit,
  f.work,
  f.work_id,
  f.workload,
  JSON_VALUE(f.facts, '$."divided work id"') AS divided_work_id,
  f.cell_id,
  f.run_id,
  MAX(IF(f.metric = 'speed_up', f.estimate, NULL)) AS speed_up,
  MAX(IF(f.metric = 'speed_up', f.low, NULL)) AS speed_up_low,
  MAX(IF(f.metric = 'speed_up', f.high, NULL)) AS speed_up_high,
  MAX(IF(f.metric = 'speed_up', f.said, NULL)) AS said,
  MAX(IF(f.metric = 'efficiency', f.estimate, NULL)) AS efficiency,
  MAX(IF(f.metric = 'efficiency', f.low, NULL)) AS low,
  MAX(IF(f.metric = 'efficiency', f.high, NULL)) AS high,
  MAX(IF(f.metric = 'communication_share', f.estimate, NULL)) AS communication_share,
  MAX(JSON_VALUE(f.facts, '$."communication method"')) AS communication_method
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'devices'
WHERE
  (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
GROUP BY
  f.backend,
  JSON_VALUE(f.facts, '$."divided work"'),
  JSON_VALUE(f.facts, '$.distribution'),
  CAST(JSON_VALUE(f.facts, '$.devices') AS INT64),
  JSON_VALUE(f.facts, '$.fit'),
  f.work,
  f.work_id,
  f.workload,
  JSON_VALUE(f.facts, '$."divided work id"'),
  f.cell_id,
  f.run_id
ORDER BY divided_work, distribution, f.backend, devices, f.cell_id
