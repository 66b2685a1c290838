-- Argo CD's health check of RLHFJob.
-- Job: what it says of itself. Suspended: it waits for a person or a queue. Stalled or Failed: it needs a change.
local status = obj.status or {}
if (status.observedGeneration or -1) ~= obj.metadata.generation then
  return {status = "Progressing", message = "The operator has not reconciled it yet"}
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function holds(type)
  return conditions[type] ~= nil and conditions[type].status == "True"
end

local function told(type, health)
  return {status = health, message = conditions[type].message}
end

if holds("Failed") then return told("Failed", "Degraded") end
if holds("Stalled") then return told("Stalled", "Degraded") end
if holds("Complete") then return told("Complete", "Healthy") end
if holds("Suspended") then return told("Suspended", "Suspended") end
return {status = "Progressing", message = status.message or ""}
