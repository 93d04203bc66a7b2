/* The queue pair is made, and used before it is connected. In the state INIT a send is refused by some providers,
 * accepted and never executed by others; receives are accepted by all. The return value is the only hint. */
#include <infiniband/verbs.h>

#include <stdint.h>

int hello(struct ibv_pd* pd, struct ibv_cq* cq, struct ibv_mr* mr) {
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}};
  struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = 6, .lkey = mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
  struct ibv_send_wr* bad;
  struct ibv_qp* qp = ibv_create_qp(pd, &init);
  if (!qp) return -1;
  ibv_post_send(qp, &wr, &bad); /* BUG: RESET, neither INIT, RTR nor RTS. */
  return ibv_destroy_qp(qp);
}
