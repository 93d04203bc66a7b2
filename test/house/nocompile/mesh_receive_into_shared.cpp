// A message does not come into what others read.
// expect: no matching
#include <verbena/typed_mesh.hpp>

using namespace verbena;

#ifdef WRONG
using Part = typed::ConstSegment<int>;
#else
using Part = typed::Segment<int>;
#endif

void receive(typed::MeshLane& lane, Part room) { (void)lane.start_receive(1, std::move(room)); }
