#include "programs/info_plan.hpp"

#include "base/error.hpp"
#include "kv/client.hpp"
#include "kv/plan.hpp"
#include "link/fabric.hpp"
#include "programs/environment.hpp"
#include "programs/json.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>

namespace verbena::programs {
namespace {

constexpr std::chrono::seconds kOpenTimeout{5};

void put_pools(std::string& text, const char* title, const host::Footprint& footprint) {
  std::size_t width = 0;
  for (const host::Pool& pool : footprint.pools()) width = std::max(width, pool.name.size());
  append(text, "{}\n", title);
  append(text, "  {:<{}} {:>10} {:>12} {:>14}  {:<5} {:<11} {}\n", "pool", width, "count", "bytes each", "bytes",
         "node", "memory", "when");
  for (const host::Pool& pool : footprint.pools()) {
    append(text, "  {:<{}} {:>10} {:>12} {:>14}  {:<5} {:<11} {}\n", pool.name, width, pool.count, pool.bytes_each,
           pool.bytes(), pool.node ? fmt::format("{}", *pool.node) : "any", to_string(pool.kind), pool.when);
  }
  using host::PoolKind;
  append(text, "  sum: {} registered, {} private, {} as used\n", human_bytes(footprint.bytes(PoolKind::kRegistered)),
         human_bytes(footprint.bytes(PoolKind::kPrivate)), human_bytes(footprint.bytes(PoolKind::kAsUsed)));
}

Json pools_json(const host::Footprint& footprint) {
  using host::PoolKind;
  const auto pool_json = [](const host::Pool& pool) {
    return json_object("name", pool.name, "memory", to_string(pool.kind), "count", pool.count, "bytes_each",
                       pool.bytes_each, "bytes", pool.bytes(), "node", pool.node, "when", pool.when);
  };
  return json_object("pools", json_array(footprint.pools(), pool_json), "registered_bytes",
                     footprint.bytes(PoolKind::kRegistered), "private_bytes", footprint.bytes(PoolKind::kPrivate),
                     "as_used_bytes", footprint.bytes(PoolKind::kAsUsed));
}

Json poller_json(const host::PlacedPoller& poller) {
  return json_object("cpu", poller.core ? std::optional(poller.core->cpu) : std::nullopt, "node", poller.node, "wait",
                     to_string(poller.wait));
}

}  // namespace

Result<ServerPlan> plan_server(const kv::ServerOptions& options) {
  VERBENA_TRY(kv::check_options(options));
  VERBENA_ASSIGN(const auto fabric, link::Fabric::open({.transport = options.transport, .address = options.address},
                                                       Deadline::after(kOpenTimeout)));
  nic::Nic& nic = fabric->nic();
  ServerPlan plan{.nic = nic.name(),
                  .nic_reason = fabric->reason(),
                  .placement = {},
                  .server = {},
                  .client = {},
                  .resting = kv::resting_words(options),
                  .memory = {},
                  .descriptors = {},
                  .refused = {}};
  VERBENA_ASSIGN(const host::Topology topology, host::Topology::read());
  const std::vector<unsigned> claimed = host::claimed_cores(topology);
  host::PlacementRequest request = kv::placement_request(options, topology, nic);
  request.claimed = claimed;
  VERBENA_ASSIGN(plan.placement, host::plan_placement(topology, request));
  plan.server = kv::footprint(options, plan.placement, nic.kind(), nic.limits());
  kv::ClientOptions client;
  client.depth = std::min(client.depth, options.depth);
  plan.client = kv::PollingClient::footprint(nic.kind(), nic.limits(), client, options.workers);
  auto fits = kv::check_device(options, nic.limits());
  const auto headroom = host::memory_headroom(std::nullopt);
  if (fits) fits = kv::check_memory(options, plan.server, headroom);
  if (!fits) {
    plan.refused = fits.error().text();
  } else {
    plan.memory = kv::memory_warning(options, plan.server, headroom);
    plan.descriptors = kv::descriptor_warning(options, nic.capabilities(), host::descriptors(host::Limit::kHard));
  }
  return plan;
}

std::string plan_text(const ServerPlan& plan) {
  std::string text = fmt::format("NIC           {}: {}\nPlacement\n", plan.nic, plan.nic_reason);
  for (const std::string& sentence : plan.placement.words) text += "  " + sentence + "\n";
  put_pools(text, "Pools of the server, with all its clients", plan.server);
  put_pools(text, "Pools of one client, with its defaults", plan.client);
  text += "Memory\n  " + plan.resting + "\n";
  if (!plan.memory.empty()) text += "  " + plan.memory + "\n";
  if (!plan.descriptors.empty()) text += "Descriptors\n  " + plan.descriptors + "\n";
  if (!plan.refused.empty()) text += "Refused\n  " + plan.refused + "\n";
  return text;
}

std::string plan_json(const ServerPlan& plan) {
  const auto if_any = [](const std::string& text) { return text.empty() ? std::nullopt : std::optional(text); };
  const Json placement = json_object("words", json_array(plan.placement.words, std::identity()), "workers",
                                     json_array(plan.placement.pollers, poller_json));
  return json_line("nic", plan.nic, "nic_reason", plan.nic_reason, "placement", placement, "server",
                   pools_json(plan.server), "client", pools_json(plan.client), "resting", plan.resting, "memory",
                   if_any(plan.memory), "descriptors", if_any(plan.descriptors), "refused", if_any(plan.refused));
}

}  // namespace verbena::programs
