// A coroutine's frame comes from a pool that is given to it, never from the heap.
// expect: must be a FramePool or a Loop
#include <verbena/coroutines.hpp>

using namespace verbena;

#ifdef WRONG
coroutine::Task<Status> work(int /*number*/) { co_return Status::kOk; }
#else
coroutine::Task<Status> work(coroutine::FramePool& /*pool*/, int /*number*/) { co_return Status::kOk; }
#endif
