-- title: How the model is called
-- asks: What does a call cost, by the way of calling the model, and are its outputs those of model(x)?
-- null: percentiles of a process with too few calls; the ratio of the reference, or of a call that is not compared
SELECT
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.device,
  f.cell_id,
  f.run_id,
  JSON_VALUE(f.facts, '$.call') AS call,
  f.against AS reference,
  JSON_VALUE(f.facts, '$.ladder') AS ladder,
  JSON_VALUE(f.facts, '$."ladder id"') AS ladder_id,
  MAX(TO_JSON_STRING(f.facts)) AS facts,
  MAX(IF(f.metric = 'call_time_s', f.estimate, NULL)) AS call_time_s,
  MAX(IF(f.metric = 'call_time_p50_s', f.estimate, NULL)) AS call_time_p50_s,
  MAX(IF(f.metric = 'call_time_p50_s', f.low, NULL)) AS p50_low,
  MAX(IF(f.metric = 'call_time_p50_s', f.high, NULL)) AS p50_high,
  MAX(IF(f.metric = 'call_time_p99_s', f.estimate, NULL)) AS call_time_p99_s,
  MAX(IF(f.metric = 'call_time_p99_s', f.low, NULL)) AS p99_low,
  MAX(IF(f.metric = 'call_time_p99_s', f.high, NULL)) AS p99_high,
  MAX(IF(f.metric = 'outputs_deviation', f.estimate, NULL)) AS outputs_deviation,
  MAX(IF(f.metric = 'call_over_reference', f.estimate, NULL)) AS ratio,
  MAX(IF(f.metric = 'call_over_reference', f.low, NULL)) AS low,
  MAX(IF(f.metric = 'call_over_reference', f.high, NULL)) AS high,
  MAX(IF(f.metric = 'call_over_reference', f.said, NULL)) AS said
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'call'
WHERE
  (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
GROUP BY
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.device,
  f.cell_id,
  f.run_id,
  JSON_VALUE(f.facts, '$.call'),
  f.against,
  JSON_VALUE(f.facts, '$.ladder'),
  JSON_VALUE(f.facts, '$."ladder id"')
ORDER BY ladder, ladder_id, f.backend, f.cell_id
