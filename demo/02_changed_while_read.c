/* One buffer, filled again for the next block as soon as the last WRITE is posted. The NIC reads it when it gets to it:
 * the peer receives some of the first block, some of the second, or both mixed. It works on an idle machine. */
#include <infiniband/verbs.h>

#include <stdint.h>
#include <string.h>

int write_blocks(struct ibv_qp* qp, struct ibv_mr* mr, const char* blocks, uint64_t address, uint32_t rkey) {
  for (int i = 0; i < 2; ++i) {
    struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = 4096, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
    struct ibv_send_wr* bad;
    memcpy(mr->addr, blocks + 4096 * i, 4096); /* BUG: in the second round the first WRITE may be under way. */
    wr.wr.rdma.remote_addr = address + 4096 * (uint64_t)i;
    wr.wr.rdma.rkey = rkey;
    if (ibv_post_send(qp, &wr, &bad)) return -1;
  }
  return 0;
}
