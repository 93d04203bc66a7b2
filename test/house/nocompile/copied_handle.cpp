// Two owners of one queue pair would destroy it twice.
// expect: deleted|implicitly-declared
#include "nic/nic.hpp"

void take(verbena::nic::Qp& qp) {
#ifdef WRONG
  const verbena::nic::Qp other = qp;
#else
  const verbena::nic::Qp other = std::move(qp);
#endif
}
