// Nodes of verbena/rdma.h.
#include "api/c/arguments.hpp"
#include "api/c/handles.hpp"
#include "api/c/transport.hpp"
#include "base/limit.hpp"

#include <utility>

namespace verbena::api::c {
namespace {

[[nodiscard]] Result<node::NodeOptions> checked(const RdmaNodeOptions& options) {
  VERBENA_TRY(check_limit("options", "shards", options.shards, 1, 256));  // Before `cpus` is read.
  node::NodeOptions made;
  VERBENA_ASSIGN(made.transport, transport_of(kBootstraps, options.bootstrap, options.device, options.gid_index));
  if (options.address != nullptr) made.address = options.address;
  made.shards = options.shards;
  made.connections = options.connections;
  if (options.cpus != nullptr) made.cpus.assign(options.cpus, options.cpus + options.shards);
  VERBENA_ASSIGN(made.allowed_uids, users_of(options.allowed_uids, options.allowed_uid_count));
  return made;
}

}  // namespace
}  // namespace verbena::api::c

using namespace verbena::api;
using namespace verbena::api::c;

void rdmaNodeOptionsInit(RdmaNodeOptions* options) {
  if (options == nullptr) return;
  const verbena::node::NodeOptions defaults;
  *options = {};  // Null, 0 and RDMA CM, except for these.
  options->gid_index = -1;
  options->shards = defaults.shards;
  options->connections = defaults.connections;
}

int rdmaNode(RdmaNode** node, const RdmaNodeOptions* options) {
  clear(node);
  RdmaNodeOptions wanted;
  rdmaNodeOptionsInit(&wanted);
  if (options != nullptr) wanted = *options;
  return coded(__func__, [&]() -> verbena::Result<void> {
    VERBENA_TRY(check_given("node", node));
    VERBENA_ASSIGN(const verbena::node::NodeOptions made, checked(wanted));
    auto handle = std::make_unique<RdmaNode>();
    VERBENA_ASSIGN(handle->node, verbena::node::Node::open(made));
    *node = handle.release();
    return {};
  });
}

void rdmaNodeRelease(RdmaNode* node) {
  if (node != nullptr) verbena::delete_unless_forked(node);
}

const RdmaMemory* rdmaNodeRegMem(RdmaNode* node, size_t size) { return allocate(node, __func__, size); }
const RdmaMemory* rdmaNodeRegister(RdmaNode* node, void* addr, size_t length, unsigned access) {
  return add(node, __func__, addr, length, access);
}
int rdmaNodeDeregMem(RdmaNode* node, const RdmaMemory* memory) { return remove(node, __func__, memory); }
int rdmaNodePublish(RdmaNode* node, const char* name, const RdmaMemory* memory) {
  return publish(node, __func__, name, memory);
}
int rdmaNodePublishPart(RdmaNode* node, const char* name, const RdmaMemory* memory, size_t offset, size_t length) {
  return publish_part(node, __func__, name, memory, offset, length);
}
