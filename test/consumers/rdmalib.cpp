// A program as users of RDMALib write it, after its README, against our header as it is: servers that know each other
// by a list of hosts send each other a message, and an item of their memory. usage: rdmalib HOST:PORT,HOST:PORT,...
// SERVER_ID RDMA_PORT
#include <verbena/compat/nova.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace std;
using namespace rdmaio;
using namespace nova;

class CountingCallback : public NovaMsgCallback {
 public:
  bool ProcessRDMAWC(ibv_wc_opcode type, uint64_t, int remote_server_id, char* buf, uint32_t imm_data) override {
    switch (type) {
      case IBV_WC_RECV:
        if (buf[0] != 'a' + remote_server_id) exit(3);
        nmessages++;
        break;
      case IBV_WC_RECV_RDMA_WITH_IMM:
        if (buf[0] != 'A' + remote_server_id || imm_data != 7) exit(4);
        nwritten++;
        break;
      default: ncompleted++;
    }
    return true;
  }

  size_t nmessages = 0, nwritten = 0, ncompleted = 0;
};

int main(int argc, char* argv[]) {
  if (argc != 4) return 2;
  const uint64_t mem_pool_size_gb = 1;
  const uint64_t mem_pool_size = mem_pool_size_gb * 1024 * 1024 * 1024;
  const int my_server_id = atoi(argv[2]);
  const int rdma_port = atoi(argv[3]);
  // Zeroed as the pages are touched, which spares the machine of a test some GiB.
  char* rdma_backing_mem = (char*)calloc(mem_pool_size, 1);
  std::vector<Host> hosts = convert_hosts(argv[1]);

  RdmaCtrl* ctrl = new RdmaCtrl(my_server_id, rdma_port);
  std::vector<QPEndPoint> endpoints;
  for (size_t i = 0; i < hosts.size(); i++) {
    if ((int)hosts[i].server_id == my_server_id) {
      continue;
    }
    QPEndPoint endpoint = {};
    endpoint.thread_id = 0;
    endpoint.server_id = hosts[i].server_id;
    endpoint.host = hosts[i];
    endpoints.push_back(endpoint);
  }

  char* user_memory = rdma_backing_mem + nrdma_buf_total();
  NovaMemManager* mem_manager = new NovaMemManager(user_memory, 1, mem_pool_size_gb, 1);
  uint32_t scid = mem_manager->slabclassid(0, 40);
  char* item = mem_manager->ItemAlloc(0, scid);
  item[0] = (char)('A' + my_server_id);

  CountingCallback* callback = new CountingCallback;
  NovaRDMARCStore* store = new NovaRDMARCStore(rdma_backing_mem, 0, endpoints, 16, 1024, 8, my_server_id,
                                               rdma_backing_mem, mem_pool_size, rdma_port, callback);
  store->Init(ctrl);
  for (auto& endpoint : endpoints) {
    int server_id = (int)endpoint.server_id;
    char* sendbuf = store->GetSendBuf(server_id);
    sendbuf[0] = (char)('a' + my_server_id);
    store->PostSend(sendbuf, 1, server_id, 0);
    store->PostWrite(item, 1, server_id, mem_pool_size / 2 + my_server_id, true, 7);
    store->FlushPendingSends(server_id);
  }
  while (callback->nmessages < endpoints.size() || callback->nwritten < endpoints.size() ||
         callback->ncompleted < 2 * endpoints.size()) {
    for (auto& endpoint : endpoints) {
      store->PollSQ((int)endpoint.server_id);
      store->PollRQ((int)endpoint.server_id);
    }
  }
  mem_manager->FreeItem(0, item, scid);
  printf("server %d has heard from %zu\n", my_server_id, callback->nmessages);
  // What RDMALib never did: says goodbye.
  delete store;
  delete ctrl;
  delete callback;
  delete mem_manager;
  free(rdma_backing_mem);
  return 0;
}
