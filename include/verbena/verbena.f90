! The C API of verbena/rdma.h, verbena/mesh.h, verbena/kv.h, verbena/version.h and verbena/log.h for Fortran 2018,
! under the same names. The C headers document what each call does and returns. A compiled module works with one
! version of one compiler only, so this file is installed as source; compile it with your program:
!   gfortran $(pkg-config --variable=fortran verbena) hello.f90 $(pkg-config --cflags --libs verbena)
!
! Differences from C:
!  - Handles are type(rdma_conn), type(rdma_listener), type(rdma_node), type(mesh_t), type(mesh_lane_t),
!    type(mesh_carrier_t), type(kv_client_t) and type(kv_server_t). kv_open gives a type(kv_client_t), too.
!  - Fortran ignores the case of names, so MESH_SEND, MESH_WRITE and the other kinds of completions are MESH_KIND_SEND,
!    MESH_KIND_WRITE and so on: mesh_send is the call.
!  - Text is character(*) without a null character at its end; '' stands for C's null.
!  - Data is a variable of any type and rank, followed by its length in bytes, as c_sizeof returns it:
!    rdmaConnSend(conn, a, c_sizeof(a)). The compiler copies an array section that is not contiguous. Declare a variable
!    as target and volatile if the peer reads or writes it in place, or if you poll it.
!  - Memory that the library uses after the call has returned, as mesh_write and mesh_read do, is type(c_ptr): what
!    mesh_allocate gave, or c_loc of a variable with target and asynchronous or volatile.
!  - rdmaErrorText, mesh_error_text and kv_error_text (rdmaErrorString, mesh_error_string and kv_error_string in C),
!    rdmaErrorDetail, mesh_error_detail, kv_error_detail, rdmaServerAddress, mesh_description and verbena_version return
!    allocatable text. kv_get returns its value as allocatable text, so there is no kv_release.
!  - Keys and values of the store are data, each followed by its length; text, too: kv_client_put(client, 'key',
!    3_c_size_t, array, c_sizeof(array)). kv_set and kv_get take text alone: blanks at the end of a key do not count,
!    those of a value do.
!  - Lists, such as allowed_uids, are arrays and need no count: mesh_wait(lane, some, MESH_ALL, 1000).
!  - SIZE_MAX, as kv_client_batch_get sets lengths to it, is -1.
!  - Callbacks are bind(C) procedures; `user` is type(c_ptr), c_null_ptr if you need none.
module verbena
  use, intrinsic :: iso_c_binding
  implicit none
  private

  ! --- error codes: enum RdmaError -----------------------------------------------------------------------------------
  integer(c_int), parameter, public :: &
    RDMA_OK = 0, RDMA_ERR = -1, &
    RDMA_ERR_AGAIN = -2, RDMA_ERR_TIMED_OUT = -3, &
    RDMA_ERR_NOT_FOUND = -4, RDMA_ERR_TOO_LONG = -7, RDMA_ERR_BUFFER_TOO_SMALL = -8, RDMA_ERR_BAD_ARGUMENT = -12, &
    RDMA_ERR_OUT_OF_RANGE = -13, RDMA_ERR_LOCAL_ACCESS = -14, RDMA_ERR_UNSUPPORTED = -15, RDMA_ERR_BUSY = -16, &
    RDMA_ERR_PEER_LOST = -17, RDMA_ERR_CONNECTION_REFUSED = -18, RDMA_ERR_REJECTED = -19, RDMA_ERR_PROTOCOL = -20, &
    RDMA_ERR_REMOTE_ACCESS = -21, RDMA_ERR_REMOTE_INVALID = -22, RDMA_ERR_RETRY_EXCEEDED = -23, &
    RDMA_ERR_RNR_EXCEEDED = -24, RDMA_ERR_FLUSHED = -25, RDMA_ERR_CLOSED = -26, RDMA_ERR_NOT_ALLOWED = -27, &
    RDMA_ERR_OTHER_NAMESPACE = -28, RDMA_ERR_OTHER_HOST = -29, &
    RDMA_ERR_NO_MEMORY = -30, RDMA_ERR_LIMIT = -31, RDMA_ERR_PERMISSION = -32, RDMA_ERR_DEVICE = -33, &
    RDMA_ERR_SYSTEM = -34, RDMA_ERR_FORKED = -35

  integer(c_int), parameter, public :: RDMA_BOOTSTRAP_CM = 0, RDMA_BOOTSTRAP_SOCKET = 1
  integer(c_int), parameter, public :: RDMA_RECV_DISCARD = 0, RDMA_RECV_QUEUE = 1
  integer(c_int), parameter, public :: RDMA_MESSAGE = 0, RDMA_WRITTEN = 1
  integer(c_int), parameter, public :: RDMA_WRITE = 0, RDMA_READ = 1, RDMA_ATOMIC = 2
  integer(c_int), parameter, public :: &
    RDMA_ACCESS_LOCAL = 0, RDMA_ACCESS_REMOTE_READ = 1, RDMA_ACCESS_REMOTE_WRITE = 2, &
    RDMA_ACCESS_REMOTE_ATOMIC = 4, RDMA_ACCESS_REMOTE_ALL = 7
  integer(c_int), parameter, public :: VERBENA_LOG_ERROR = 0, VERBENA_LOG_WARNING = 1, VERBENA_LOG_INFO = 2

  ! --- constants of the mesh ------------------------------------------------------------------------------------------
  integer(c_int), parameter, public :: &
    MESH_MAX_PROCESSES = 16384, MESH_MAX_THREADS = 256, MESH_MAX_MESSAGE_BYTES = 16320, MESH_MAX_GATHER_BYTES = 64, &
    MESH_MAX_NAME_BYTES = 64, MESH_BLOB_BYTES = 256
  integer(c_int), parameter, public :: &
    MESH_OK = 0, MESH_ERR_AGAIN = -2, MESH_ERR_TIMED_OUT = -3, &
    MESH_ERR_NOT_FOUND = -4, MESH_ERR_TOO_LONG = -7, MESH_ERR_BAD_ARGUMENT = -12, MESH_ERR_OUT_OF_RANGE = -13, &
    MESH_ERR_LOCAL_ACCESS = -14, MESH_ERR_UNSUPPORTED = -15, MESH_ERR_BUSY = -16, &
    MESH_ERR_PEER_LOST = -17, MESH_ERR_CONNECTION_REFUSED = -18, MESH_ERR_REJECTED = -19, MESH_ERR_PROTOCOL = -20, &
    MESH_ERR_REMOTE_ACCESS = -21, MESH_ERR_REMOTE_INVALID = -22, MESH_ERR_RETRY_EXCEEDED = -23, &
    MESH_ERR_RNR_EXCEEDED = -24, MESH_ERR_FLUSHED = -25, MESH_ERR_CLOSED = -26, MESH_ERR_NOT_ALLOWED = -27, &
    MESH_ERR_OTHER_NAMESPACE = -28, MESH_ERR_OTHER_HOST = -29, &
    MESH_ERR_NO_MEMORY = -30, MESH_ERR_LIMIT = -31, MESH_ERR_PERMISSION = -32, MESH_ERR_DEVICE = -33, &
    MESH_ERR_SYSTEM = -34, MESH_ERR_FORKED = -35
  integer(c_int), parameter, public :: MESH_WAIT_SPIN = 0, MESH_WAIT_ADAPTIVE = 1, MESH_WAIT_EVENT = 2
  integer(c_int), parameter, public :: &
    MESH_ACCESS_LOCAL = 0, MESH_ACCESS_REMOTE_READ = 1, MESH_ACCESS_REMOTE_WRITE = 2, &
    MESH_ACCESS_REMOTE_ATOMIC = 4, MESH_ACCESS_REMOTE_ALL = 7
  ! enum mesh_kind
  integer(c_int), parameter, public :: &
    MESH_KIND_SEND = 0, MESH_KIND_WRITE = 1, MESH_KIND_READ = 2, MESH_KIND_ATOMIC = 3, MESH_KIND_RECEIVE = 4, &
    MESH_KIND_WRITTEN = 5, MESH_KIND_JOINED = 6, MESH_KIND_LEFT = 7
  integer(c_int), parameter, public :: MESH_ALL = 0, MESH_SENDS = 1, MESH_RECEIVES = 2

  ! --- constants of the store -----------------------------------------------------------------------------------------
  integer(c_int), parameter, public :: KV_MAX_KEY_BYTES = 1024, KV_DEFAULT_PORT = 7470, KV_KEY_PAGE_BYTES = 4064
  integer(c_int), parameter, public :: &
    KV_OK = 0, KV_ERR_AGAIN = -2, KV_ERR_TIMED_OUT = -3, &
    KV_ERR_NOT_FOUND = -4, KV_ERR_VERSION_MISMATCH = -5, KV_ERR_BAD_KEY = -6, KV_ERR_TOO_LONG = -7, &
    KV_ERR_BUFFER_TOO_SMALL = -8, KV_ERR_STORE_FULL = -9, KV_ERR_INDEX_FULL = -10, KV_ERR_WRONG_KIND = -11, &
    KV_ERR_BAD_ARGUMENT = -12, KV_ERR_OUT_OF_RANGE = -13, KV_ERR_LOCAL_ACCESS = -14, KV_ERR_UNSUPPORTED = -15, &
    KV_ERR_BUSY = -16, &
    KV_ERR_PEER_LOST = -17, KV_ERR_CONNECTION_REFUSED = -18, KV_ERR_REJECTED = -19, KV_ERR_PROTOCOL = -20, &
    KV_ERR_REMOTE_ACCESS = -21, KV_ERR_REMOTE_INVALID = -22, KV_ERR_RETRY_EXCEEDED = -23, KV_ERR_RNR_EXCEEDED = -24, &
    KV_ERR_FLUSHED = -25, KV_ERR_CLOSED = -26, KV_ERR_NOT_ALLOWED = -27, KV_ERR_OTHER_NAMESPACE = -28, &
    KV_ERR_OTHER_HOST = -29, &
    KV_ERR_NO_MEMORY = -30, KV_ERR_LIMIT = -31, KV_ERR_PERMISSION = -32, KV_ERR_DEVICE = -33, KV_ERR_SYSTEM = -34, &
    KV_ERR_FORKED = -35, &
    KV_ERR_DENIED = -36, KV_ERR_OVER_QUOTA = -37
  integer(c_int), parameter, public :: CONN_MODE_CM = 0, CONN_MODE_SOCKET = 1
  integer(c_int), parameter, public :: KV_LOOKUP_AUTO = 0, KV_LOOKUP_MESSAGE = 1, KV_LOOKUP_ONE_SIDED = 2
  integer(c_int), parameter, public :: KV_EVICT_NONE = 0, KV_EVICT_LRU = 1
  integer(c_int), parameter, public :: KV_RIGHT_READ = 1, KV_RIGHT_WRITE = 2, KV_RIGHT_ADMINISTER = 4

  ! --- types --------------------------------------------------------------------------------------------------------
  ! Handles: C pointers.
  type, bind(C), public :: rdma_listener
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(C), public :: rdma_conn
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(C), public :: rdma_node
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! RdmaOptions. Call rdmaOptionsInit first: it sets the defaults. Users are allowed by allowed_uids(:), which needs no
  ! count; leave it unallocated for none.
  type, public :: rdma_options
    character(len=256) :: device = ''
    integer(c_int) :: bootstrap = RDMA_BOOTSTRAP_CM
    integer(c_int) :: connect_timeout_ms = 0
    integer(c_int) :: timeout_ms = 0
    integer(c_int) :: max_connections = 0
    integer(c_int) :: recv_mode = RDMA_RECV_DISCARD
    type(c_ptr) :: window = c_null_ptr
    integer(c_size_t) :: window_bytes = 0
    integer(c_size_t) :: inbox_bytes = 0
    integer(c_size_t) :: max_message_bytes = 0
    integer(c_int) :: shared_window = 0
    integer(c_int) :: gid_index = -1
    integer(c_int), allocatable :: allowed_uids(:)
    character(len=1024) :: key_file = ''
    character(len=32) :: key_name = ''
    type(rdma_node) :: node
  end type
  ! RdmaOptions, field by field.
  type, bind(C) :: c_options
    type(c_ptr) :: device
    integer(c_int) :: bootstrap
    integer(c_int) :: connect_timeout_ms
    integer(c_int) :: timeout_ms
    integer(c_int) :: max_connections
    integer(c_int) :: recv_mode
    type(c_ptr) :: window
    integer(c_size_t) :: window_bytes
    integer(c_size_t) :: inbox_bytes
    integer(c_size_t) :: max_message_bytes
    integer(c_int) :: shared_window
    integer(c_int) :: gid_index
    type(c_ptr) :: allowed_uids
    integer(c_size_t) :: allowed_uid_count
    type(c_ptr) :: key_file
    type(c_ptr) :: key_name
    type(rdma_node) :: node
  end type

  ! RdmaNodeOptions. Call rdmaNodeOptionsInit first: it sets the defaults. cpus(:) names a core for each shard; leave it
  ! unallocated to have free ones claimed.
  type, public :: rdma_node_options
    character(len=256) :: device = ''
    integer(c_int) :: bootstrap = RDMA_BOOTSTRAP_CM
    integer(c_int) :: gid_index = -1
    character(len=256) :: address = ''
    integer(c_int) :: shards = 0
    integer(c_int) :: connections = 0
    integer(c_int), allocatable :: cpus(:)
    integer(c_int), allocatable :: allowed_uids(:)
  end type
  ! RdmaNodeOptions, field by field.
  type, bind(C) :: c_node_options
    type(c_ptr) :: device
    integer(c_int) :: bootstrap
    integer(c_int) :: gid_index
    type(c_ptr) :: address
    integer(c_int) :: shards
    integer(c_int) :: connections
    type(c_ptr) :: cpus
    type(c_ptr) :: allowed_uids
    integer(c_size_t) :: allowed_uid_count
  end type

  ! RdmaMessage; Fortran needs another name, because RDMA_MESSAGE is a constant. c_f_pointer(incoming%data, array,
  ! [...]) makes its bytes an array.
  type, bind(C), public :: rdma_incoming
    integer(c_int) :: kind
    integer(c_int) :: has_imm
    integer(c_int32_t) :: imm
    type(c_ptr) :: data
    integer(c_size_t) :: length
  end type

  ! RdmaMemory. rdmaConnRegMem and the like return a pointer to it, or null on failure.
  type, bind(C), public :: rdma_memory
    type(c_ptr) :: addr
    integer(c_size_t) :: length
    integer(c_int32_t) :: lkey
    integer(c_int32_t) :: rkey
    integer(c_int32_t) :: access
    integer(c_int64_t) :: memory_id
  end type

  ! RdmaWindow
  type, bind(C), public :: rdma_window
    integer(c_int64_t) :: addr
    integer(c_int64_t) :: length
    integer(c_int32_t) :: rkey
    integer(c_int32_t) :: access
    integer(c_int64_t) :: memory_id
  end type

  ! RdmaCompletion
  type, bind(C), public :: rdma_completion
    integer(c_int64_t) :: cookie
    integer(c_int) :: operation
    integer(c_int) :: code
    integer(c_int64_t) :: old
  end type

  ! Handles of the mesh: C pointers.
  type, bind(C), public :: mesh_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(C), public :: mesh_lane_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(C), public :: mesh_carrier_t
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! mesh_options_t. Call mesh_options_init first: it sets the defaults. allowed_uids(:) needs no count; leave it
  ! unallocated for none.
  type, public :: mesh_options_t
    integer(c_int) :: id = 0
    integer(c_int) :: processes = 1
    integer(c_int) :: threads = 1
    character(len=64) :: job = ''
    character(len=256) :: device = ''
    character(len=256) :: address = ''
    integer(c_int) :: port = 0
    integer(c_size_t) :: message_bytes = 0
    integer(c_int) :: depth = 0
    integer(c_int) :: operations = 0
    integer(c_int) :: reservations = 0
    integer(c_int) :: batch = 0
    integer(c_int) :: wait = MESH_WAIT_ADAPTIVE
    integer(c_int) :: spin_us = 0
    integer(c_int) :: join_timeout_ms = 0
    integer(c_int), allocatable :: allowed_uids(:)
    character(len=1024) :: key_file = ''
    integer(c_int64_t) :: incarnation = 0
  end type
  ! mesh_options_t of C, field by field.
  type, bind(C) :: c_mesh_options
    integer(c_int) :: id
    integer(c_int) :: processes
    integer(c_int) :: threads
    type(c_ptr) :: job
    type(c_ptr) :: device
    type(c_ptr) :: address
    integer(c_int) :: port
    integer(c_size_t) :: message_bytes
    integer(c_int) :: depth
    integer(c_int) :: operations
    integer(c_int) :: reservations
    integer(c_int) :: batch
    integer(c_int) :: wait
    integer(c_int) :: spin_us
    integer(c_int) :: join_timeout_ms
    type(c_ptr) :: allowed_uids
    integer(c_size_t) :: allowed_uid_count
    type(c_ptr) :: key_file
    integer(c_int64_t) :: incarnation
  end type

  type, bind(C), public :: mesh_window_t
    integer(c_int64_t) :: address
    integer(c_int64_t) :: length
    integer(c_int64_t) :: memory_id
    integer(c_int64_t) :: incarnation
    integer(c_int32_t) :: rkey
    integer(c_int32_t) :: access
    integer(c_int32_t) :: peer
  end type

  ! `kind` is one of MESH_KIND_SEND and so on. c_f_pointer(completion%bytes, array, [...]) makes its bytes an array.
  type, bind(C), public :: mesh_completion_t
    integer(c_int) :: kind
    integer(c_int) :: code
    integer(c_int) :: peer
    integer(c_int) :: has_immediate
    integer(c_int32_t) :: immediate
    integer(c_int32_t) :: number
    integer(c_int64_t) :: cookie
    type(c_ptr) :: bytes
    integer(c_size_t) :: length
    integer(c_int64_t) :: old
    integer(c_int64_t) :: handle
  end type

  type, bind(C), public :: mesh_counters_t
    integer(c_int64_t) :: work_requests
    integer(c_int64_t) :: direct
    integer(c_int64_t) :: doorbells
    integer(c_int64_t) :: completions
    integer(c_int64_t) :: inline_sends
    integer(c_int64_t) :: receive_refills
    integer(c_int64_t) :: empty_polls
    integer(c_int64_t) :: sleeps
    integer(c_int64_t) :: quarantined
    integer(c_int64_t) :: bytes
    integer(c_int64_t) :: strays
    integer(c_int64_t) :: keepalives
  end type

  ! Handles of the store: C pointers.
  type, bind(C), public :: kv_client_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, bind(C), public :: kv_server_t
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! kv_client_options_t. Call kv_client_options_init first: it sets the defaults. allowed_uids(:) needs no count; leave
  ! it unallocated for none.
  type, public :: kv_client_options_t
    character(len=256) :: device = ''
    integer(c_int) :: gid_index = -1
    integer(c_int) :: connect_timeout_ms = 0
    integer(c_int) :: timeout_ms = 0
    integer(c_int) :: depth = 0
    integer(c_size_t) :: buffer_bytes = 0
    integer(c_int) :: spin_us = 0
    integer(c_int), allocatable :: allowed_uids(:)
    character(len=1024) :: key_file = ''
    character(len=32) :: key_name = ''
    integer(c_int) :: lookup = KV_LOOKUP_AUTO
    integer(c_size_t) :: known_locations = 0
    integer(c_int) :: read_only = 0
  end type
  ! kv_client_options_t of C, field by field.
  type, bind(C) :: c_kv_client_options
    type(c_ptr) :: device
    integer(c_int) :: gid_index
    integer(c_int) :: connect_timeout_ms
    integer(c_int) :: timeout_ms
    integer(c_int) :: depth
    integer(c_size_t) :: buffer_bytes
    integer(c_int) :: spin_us
    type(c_ptr) :: allowed_uids
    integer(c_size_t) :: allowed_uid_count
    type(c_ptr) :: key_file
    type(c_ptr) :: key_name
    integer(c_int) :: lookup
    integer(c_size_t) :: known_locations
    integer(c_int) :: read_only
  end type

  type, bind(C), public :: kv_cell_t
    integer(c_int64_t) :: address
    integer(c_int32_t) :: worker
    integer(c_int32_t) :: is_new
  end type

  ! A new one begins the listing; is_over is 1 at its end.
  type, bind(C), public :: kv_cursor_t
    integer(c_int64_t) :: place = 0
    integer(c_int64_t) :: moves = 0
    integer(c_int64_t) :: seal = 0
    integer(c_int32_t) :: worker = 0
    integer(c_int32_t) :: is_over = 0
  end type
  ! kv_key_page_next goes over its keys.
  type, bind(C), public :: kv_key_page_t
    integer(c_int32_t) :: count
    integer(c_int32_t) :: length
    character(kind=c_char) :: bytes(KV_KEY_PAGE_BYTES)
  end type

  ! `key` and `buf` are addresses, c_loc of variables with target.
  type, bind(C), public :: kv_get_item_t
    type(c_ptr) :: key
    integer(c_size_t) :: klen
    type(c_ptr) :: buf
    integer(c_size_t) :: len
    integer(c_int64_t) :: version
    integer(c_int) :: code
  end type
  type, bind(C), public :: kv_put_item_t
    type(c_ptr) :: key
    integer(c_size_t) :: klen
    type(c_ptr) :: value
    integer(c_size_t) :: vlen
    integer(c_int64_t) :: version
    integer(c_int) :: code
  end type

  ! kv_grant_t. All characters of `prefix` count; leave it unallocated for all keys.
  type, public :: kv_grant_t
    integer(c_int) :: uid = 0
    integer(c_int) :: rights = 0
    character(len=:), allocatable :: prefix
    integer(c_size_t) :: max_memory_bytes = 0
    integer(c_size_t) :: max_items = 0
  end type
  ! kv_grant_t of C, field by field.
  type, bind(C) :: c_kv_grant
    integer(c_int) :: uid
    integer(c_int) :: rights
    type(c_ptr) :: prefix
    integer(c_size_t) :: prefix_length
    integer(c_size_t) :: max_memory_bytes
    integer(c_size_t) :: max_items
  end type

  ! kv_server_options_t. Call kv_server_options_init first: it sets the defaults. allowed_uids(:) and grants(:) need no
  ! count; leave them unallocated for none.
  type, public :: kv_server_options_t
    integer(c_int) :: mode = CONN_MODE_CM
    character(len=256) :: device = ''
    integer(c_int) :: gid_index = -1
    character(len=256) :: address = ''
    integer(c_int) :: port = KV_DEFAULT_PORT
    integer(c_size_t) :: memory_bytes = 0
    integer(c_int) :: require_hugepages = 0
    integer(c_int) :: workers = 0
    integer(c_int) :: max_clients = 0
    integer(c_int) :: max_clients_per_user = 0
    integer(c_int) :: depth = 0
    integer(c_size_t) :: max_value_bytes = 0
    integer(c_size_t) :: lease_bytes = 0
    integer(c_int) :: trusted_clients = 0
    integer(c_int) :: client_leases = 0
    integer(c_int) :: lease_term_ms = 0
    integer(c_size_t) :: max_items = 0
    integer(c_int) :: checksum_large_values = 0
    integer(c_int) :: grace_ms = 0
    integer(c_int) :: spin_us = 0
    integer(c_int) :: pin_workers = 0
    integer(c_int), allocatable :: allowed_uids(:)
    character(len=1024) :: key_file = ''
    integer(c_size_t) :: max_cells = 0
    integer(c_int) :: evict = KV_EVICT_NONE
    type(kv_grant_t), allocatable :: grants(:)
  end type
  ! kv_server_options_t of C, field by field.
  type, bind(C) :: c_kv_server_options
    integer(c_int) :: mode
    type(c_ptr) :: device
    integer(c_int) :: gid_index
    type(c_ptr) :: address
    integer(c_int) :: port
    integer(c_size_t) :: memory_bytes
    integer(c_int) :: require_hugepages
    integer(c_int) :: workers
    integer(c_int) :: max_clients
    integer(c_int) :: max_clients_per_user
    integer(c_int) :: depth
    integer(c_size_t) :: max_value_bytes
    integer(c_size_t) :: lease_bytes
    integer(c_int) :: trusted_clients
    integer(c_int) :: client_leases
    integer(c_int) :: lease_term_ms
    integer(c_size_t) :: max_items
    integer(c_int) :: checksum_large_values
    integer(c_int) :: grace_ms
    integer(c_int) :: spin_us
    integer(c_int) :: pin_workers
    type(c_ptr) :: allowed_uids
    integer(c_size_t) :: allowed_uid_count
    type(c_ptr) :: key_file
    integer(c_size_t) :: max_cells
    type(c_ptr) :: grants
    integer(c_size_t) :: grant_count
    integer(c_int) :: evict
  end type

  abstract interface
    subroutine rdma_conn_procedure(conn, user) bind(C)
      import :: c_ptr, rdma_conn
      type(rdma_conn), value :: conn
      type(c_ptr), value :: user
    end subroutine
    subroutine rdma_message_procedure(conn, message, user) bind(C)
      import :: c_ptr, rdma_conn, rdma_incoming
      type(rdma_conn), value :: conn
      type(rdma_incoming), intent(in) :: message
      type(c_ptr), value :: user
    end subroutine
    subroutine rdma_completion_procedure(conn, completion, user) bind(C)
      import :: c_ptr, rdma_conn, rdma_completion
      type(rdma_conn), value :: conn
      type(rdma_completion), intent(in) :: completion
      type(c_ptr), value :: user
    end subroutine
    subroutine rdma_disconnect_procedure(conn, code, user) bind(C)
      import :: c_int, c_ptr, rdma_conn
      type(rdma_conn), value :: conn
      integer(c_int), value :: code
      type(c_ptr), value :: user
    end subroutine
    ! mesh_all_gather_t: `mine` and `all` are the addresses of bytes_each bytes, and of as many of each process.
    function mesh_all_gather_procedure(mine, all, bytes_each, context) bind(C)
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: mine
      type(c_ptr), value :: all
      integer(c_size_t), value :: bytes_each
      type(c_ptr), value :: context
      integer(c_int) :: mesh_all_gather_procedure
    end function
    ! `line` is C text, which ends with a null character; verbenaLogLine(line) returns it as Fortran text.
    subroutine verbena_log_procedure(level, line, user) bind(C)
      import :: c_int, c_ptr
      integer(c_int), value :: level
      type(c_ptr), value :: line
      type(c_ptr), value :: user
    end subroutine
  end interface
  public :: rdma_conn_procedure, rdma_message_procedure, rdma_disconnect_procedure, rdma_completion_procedure, &
    mesh_all_gather_procedure, verbena_log_procedure

  ! --- calls with the same arguments as in C ------------------------------------------------------------------------
  interface
    function rdmaServerStart(listener) bind(C, name='verbena_rdmaServerStart')
      import
      type(rdma_listener), value :: listener
      integer(c_int) :: rdmaServerStart
    end function
    function rdmaServerPort(listener) bind(C, name='verbena_rdmaServerPort')
      import
      type(rdma_listener), value :: listener
      integer(c_int) :: rdmaServerPort
    end function
    function rdmaServerWait(listener) bind(C, name='verbena_rdmaServerWait')
      import
      type(rdma_listener), value :: listener
      integer(c_int) :: rdmaServerWait
    end function
    function rdmaServerStop(listener) bind(C, name='verbena_rdmaServerStop')
      import
      type(rdma_listener), value :: listener
      integer(c_int) :: rdmaServerStop
    end function
    function rdmaServerWindow(listener, length) bind(C, name='verbena_rdmaServerWindow')
      import
      type(rdma_listener), value :: listener
      integer(c_size_t), intent(out) :: length
      type(c_ptr) :: rdmaServerWindow
    end function
    subroutine rdmaNodeRelease(node) bind(C, name='verbena_rdmaNodeRelease')
      import
      type(rdma_node), value :: node
    end subroutine
    function rdmaNodeDeregMem(node, memory) bind(C, name='verbena_rdmaNodeDeregMem')
      import
      type(rdma_node), value :: node
      type(rdma_memory), intent(in) :: memory
      integer(c_int) :: rdmaNodeDeregMem
    end function
    function verbena_version_number() bind(C, name='verbena_version_number')
      import
      integer(c_int) :: verbena_version_number
    end function
    subroutine rdmaServerRelease(listener) bind(C, name='verbena_rdmaServerRelease')
      import
      type(rdma_listener), value :: listener
    end subroutine
    function rdmaConn() bind(C, name='verbena_rdmaConn')
      import
      type(rdma_conn) :: rdmaConn
    end function
    function rdmaConnKeep(conn) bind(C, name='verbena_rdmaConnKeep')
      import
      type(rdma_conn), value :: conn
      integer(c_int) :: rdmaConnKeep
    end function
    subroutine rdmaConnClose(conn) bind(C, name='verbena_rdmaConnClose')
      import
      type(rdma_conn), value :: conn
    end subroutine
    subroutine rdmaRuntimeStop() bind(C, name='verbena_rdmaRuntimeStop')
      import
    end subroutine
    function rdmaConnSetTimeout(conn, timeout_ms) bind(C, name='verbena_rdmaConnSetTimeout')
      import
      type(rdma_conn), value :: conn
      integer(c_int), value :: timeout_ms
      integer(c_int) :: rdmaConnSetTimeout
    end function
    function rdmaConnError(conn) bind(C, name='verbena_rdmaConnError')
      import
      type(rdma_conn), value :: conn
      integer(c_int) :: rdmaConnError
    end function
    function rdmaConnDiscarded(conn) bind(C, name='verbena_rdmaConnDiscarded')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t) :: rdmaConnDiscarded
    end function
    function rdmaConnWindow(conn, length) bind(C, name='verbena_rdmaConnWindow')
      import
      type(rdma_conn), value :: conn
      integer(c_size_t), intent(out) :: length
      type(c_ptr) :: rdmaConnWindow
    end function
    function rdmaConnPeerWindowBytes(conn) bind(C, name='verbena_rdmaConnPeerWindowBytes')
      import
      type(rdma_conn), value :: conn
      integer(c_size_t) :: rdmaConnPeerWindowBytes
    end function
    function rdmaServerDeregMem(listener, memory) bind(C, name='verbena_rdmaServerDeregMem')
      import
      type(rdma_listener), value :: listener
      type(rdma_memory), intent(in) :: memory
      integer(c_int) :: rdmaServerDeregMem
    end function
    function rdmaConnPeerWindow(conn, window) bind(C, name='verbena_rdmaConnPeerWindow')
      import
      type(rdma_conn), value :: conn
      type(rdma_window), intent(out) :: window
      integer(c_int) :: rdmaConnPeerWindow
    end function
    function rdmaConnDeregMem(conn, memory) bind(C, name='verbena_rdmaConnDeregMem')
      import
      type(rdma_conn), value :: conn
      type(rdma_memory), intent(in) :: memory
      integer(c_int) :: rdmaConnDeregMem
    end function
    function rdmaConnImportWindow(conn, window) bind(C, name='verbena_rdmaConnImportWindow')
      import
      type(rdma_conn), value :: conn
      type(rdma_window), intent(in) :: window
      integer(c_int) :: rdmaConnImportWindow
    end function
    function rdmaConnReleaseWindow(conn, window) bind(C, name='verbena_rdmaConnReleaseWindow')
      import
      type(rdma_conn), value :: conn
      type(rdma_window), intent(in) :: window
      integer(c_int) :: rdmaConnReleaseWindow
    end function
    function rdmaSyncWriteSignaled(conn, local_addr, lkey, remote_addr, rkey, length) &
        bind(C, name='verbena_rdmaSyncWriteSignaled')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: local_addr
      integer(c_int32_t), value :: lkey
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: rkey
      integer(c_int32_t), value :: length
      integer(c_int) :: rdmaSyncWriteSignaled
    end function
    function rdmaSyncReadSignaled(conn, local_addr, lkey, remote_addr, rkey, length) &
        bind(C, name='verbena_rdmaSyncReadSignaled')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: local_addr
      integer(c_int32_t), value :: lkey
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: rkey
      integer(c_int32_t), value :: length
      integer(c_int) :: rdmaSyncReadSignaled
    end function
    function rdmaSyncFetchAdd(conn, remote_addr, rkey, add, old) bind(C, name='verbena_rdmaSyncFetchAdd')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: rkey
      integer(c_int64_t), value :: add
      integer(c_int64_t), intent(out) :: old
      integer(c_int) :: rdmaSyncFetchAdd
    end function
    function rdmaSyncCompareSwap(conn, remote_addr, rkey, expected, desired, old) &
        bind(C, name='verbena_rdmaSyncCompareSwap')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: rkey
      integer(c_int64_t), value :: expected
      integer(c_int64_t), value :: desired
      integer(c_int64_t), intent(inout) :: old
      integer(c_int) :: rdmaSyncCompareSwap
    end function
    function rdmaStartWrite(conn, local_addr, lkey, remote_addr, rkey, length, cookie) &
        bind(C, name='verbena_rdmaStartWrite')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: local_addr
      integer(c_int32_t), value :: lkey
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: rkey
      integer(c_int32_t), value :: length
      integer(c_int64_t), value :: cookie
      integer(c_int) :: rdmaStartWrite
    end function
    function rdmaStartRead(conn, local_addr, lkey, remote_addr, rkey, length, cookie) &
        bind(C, name='verbena_rdmaStartRead')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: local_addr
      integer(c_int32_t), value :: lkey
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: rkey
      integer(c_int32_t), value :: length
      integer(c_int64_t), value :: cookie
      integer(c_int) :: rdmaStartRead
    end function
    function rdmaStartFetchAdd(conn, remote_addr, rkey, add, cookie) bind(C, name='verbena_rdmaStartFetchAdd')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: rkey
      integer(c_int64_t), value :: add
      integer(c_int64_t), value :: cookie
      integer(c_int) :: rdmaStartFetchAdd
    end function
    function rdmaStartCompareSwap(conn, remote_addr, rkey, expected, desired, cookie) &
        bind(C, name='verbena_rdmaStartCompareSwap')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: rkey
      integer(c_int64_t), value :: expected
      integer(c_int64_t), value :: desired
      integer(c_int64_t), value :: cookie
      integer(c_int) :: rdmaStartCompareSwap
    end function
    function rdmaConnComplete(conn, completion, timeout_ms) bind(C, name='verbena_rdmaConnComplete')
      import
      type(rdma_conn), value :: conn
      type(rdma_completion), intent(out) :: completion
      integer(c_int), value :: timeout_ms
      integer(c_int) :: rdmaConnComplete
    end function
    function rdmaPAExport(conn, memory, physical) bind(C, name='verbena_rdmaPAExport')
      import
      type(rdma_conn), value :: conn
      type(rdma_memory), intent(in) :: memory
      integer(c_int64_t), intent(out) :: physical
      integer(c_int) :: rdmaPAExport
    end function
    function rdmaPAAddress(conn, local, physical) bind(C, name='verbena_rdmaPAAddress')
      import
      type(rdma_conn), value :: conn
      type(c_ptr), value :: local
      integer(c_int64_t), intent(out) :: physical
      integer(c_int) :: rdmaPAAddress
    end function
    function rdmaPASyncWriteSignaled(conn, local_addr, lkey, remote_addr, length) &
        bind(C, name='verbena_rdmaPASyncWriteSignaled')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: local_addr
      integer(c_int32_t), value :: lkey
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: length
      integer(c_int) :: rdmaPASyncWriteSignaled
    end function
    function rdmaPASyncReadSignaled(conn, local_addr, lkey, remote_addr, length) &
        bind(C, name='verbena_rdmaPASyncReadSignaled')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: local_addr
      integer(c_int32_t), value :: lkey
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: length
      integer(c_int) :: rdmaPASyncReadSignaled
    end function
    function rdmaPASyncFetchAdd(conn, remote_addr, add, old) bind(C, name='verbena_rdmaPASyncFetchAdd')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: remote_addr
      integer(c_int64_t), value :: add
      integer(c_int64_t), intent(out) :: old
      integer(c_int) :: rdmaPASyncFetchAdd
    end function
    function rdmaPASyncCompareSwap(conn, remote_addr, expected, desired, old) &
        bind(C, name='verbena_rdmaPASyncCompareSwap')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: remote_addr
      integer(c_int64_t), value :: expected
      integer(c_int64_t), value :: desired
      integer(c_int64_t), intent(inout) :: old
      integer(c_int) :: rdmaPASyncCompareSwap
    end function
    function rdmaPAWriteSignaled(conn, local_addr, lkey, remote_addr, length) &
        bind(C, name='verbena_rdmaPAWriteSignaled')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: local_addr
      integer(c_int32_t), value :: lkey
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: length
      integer(c_int) :: rdmaPAWriteSignaled
    end function
    function rdmaPAReadSignaled(conn, local_addr, lkey, remote_addr, length) &
        bind(C, name='verbena_rdmaPAReadSignaled')
      import
      type(rdma_conn), value :: conn
      integer(c_int64_t), value :: local_addr
      integer(c_int32_t), value :: lkey
      integer(c_int64_t), value :: remote_addr
      integer(c_int32_t), value :: length
      integer(c_int) :: rdmaPAReadSignaled
    end function
  end interface
  public :: rdmaServerDeregMem, rdmaConnPeerWindow, rdmaConnDeregMem, rdmaConnImportWindow, &
    rdmaConnReleaseWindow, rdmaSyncWriteSignaled, rdmaSyncReadSignaled, rdmaSyncFetchAdd, rdmaSyncCompareSwap, &
    rdmaStartWrite, rdmaStartRead, rdmaStartFetchAdd, rdmaStartCompareSwap, rdmaConnComplete, rdmaPAExport, &
    rdmaPAAddress, rdmaPASyncWriteSignaled, rdmaPASyncReadSignaled, rdmaPASyncFetchAdd, rdmaPASyncCompareSwap, &
    rdmaPAWriteSignaled, rdmaPAReadSignaled
  public :: rdmaServerStart, rdmaServerPort, rdmaServerWait, rdmaServerStop, rdmaServerRelease, rdmaConn, &
    rdmaConnKeep, rdmaConnClose, rdmaRuntimeStop, rdmaConnSetTimeout, rdmaConnError, rdmaConnDiscarded, &
    rdmaConnWindow, rdmaConnPeerWindowBytes, rdmaServerWindow, rdmaNodeRelease, rdmaNodeDeregMem, &
    verbena_version_number

  ! --- calls of the mesh with the same arguments as in C ------------------------------------------------------------
  interface
    subroutine mesh_carrier_destroy(carrier) bind(C, name='verbena_mesh_carrier_destroy')
      import
      type(mesh_carrier_t), value :: carrier
    end subroutine
    function mesh_leave(mesh) bind(C, name='verbena_mesh_leave')
      import
      type(mesh_t), value :: mesh
      integer(c_int) :: mesh_leave
    end function
    function mesh_lane(mesh, thread) bind(C, name='verbena_mesh_lane')
      import
      type(mesh_t), value :: mesh
      integer(c_int), value :: thread
      type(mesh_lane_t) :: mesh_lane
    end function
    function mesh_allocate(mesh, bytes, memory) bind(C, name='verbena_mesh_allocate')
      import
      type(mesh_t), value :: mesh
      integer(c_size_t), value :: bytes
      type(c_ptr), intent(out) :: memory
      integer(c_int) :: mesh_allocate
    end function
    function mesh_add(mesh, memory, bytes, access) bind(C, name='verbena_mesh_add')
      import
      type(mesh_t), value :: mesh
      type(c_ptr), value :: memory
      integer(c_size_t), value :: bytes
      integer(c_int), value :: access
      integer(c_int) :: mesh_add
    end function
    function mesh_reserve(lane, peer, message) bind(C, name='verbena_mesh_reserve')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      type(c_ptr), intent(out) :: message
      integer(c_int) :: mesh_reserve
    end function
    function mesh_commit(lane, peer, message, bytes, cookie) bind(C, name='verbena_mesh_commit')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      type(c_ptr), value :: message
      integer(c_size_t), value :: bytes
      integer(c_int64_t), value :: cookie
      integer(c_int) :: mesh_commit
    end function
    function mesh_commit_imm(lane, peer, message, bytes, cookie, immediate) bind(C, name='verbena_mesh_commit_imm')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      type(c_ptr), value :: message
      integer(c_size_t), value :: bytes
      integer(c_int64_t), value :: cookie
      integer(c_int32_t), value :: immediate
      integer(c_int) :: mesh_commit_imm
    end function
    function mesh_cancel(lane, peer, message) bind(C, name='verbena_mesh_cancel')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      type(c_ptr), value :: message
      integer(c_int) :: mesh_cancel
    end function
    function mesh_write(lane, to, offset, from, bytes, cookie) bind(C, name='verbena_mesh_write')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_window_t), intent(in) :: to
      integer(c_int64_t), value :: offset
      type(c_ptr), value :: from
      integer(c_size_t), value :: bytes
      integer(c_int64_t), value :: cookie
      integer(c_int) :: mesh_write
    end function
    function mesh_write_imm(lane, to, offset, from, bytes, cookie, immediate) bind(C, name='verbena_mesh_write_imm')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_window_t), intent(in) :: to
      integer(c_int64_t), value :: offset
      type(c_ptr), value :: from
      integer(c_size_t), value :: bytes
      integer(c_int64_t), value :: cookie
      integer(c_int32_t), value :: immediate
      integer(c_int) :: mesh_write_imm
    end function
    function mesh_read(lane, from, offset, to, bytes, cookie) bind(C, name='verbena_mesh_read')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_window_t), intent(in) :: from
      integer(c_int64_t), value :: offset
      type(c_ptr), value :: to
      integer(c_size_t), value :: bytes
      integer(c_int64_t), value :: cookie
      integer(c_int) :: mesh_read
    end function
    function mesh_fetch_add(lane, at, offset, add, cookie) bind(C, name='verbena_mesh_fetch_add')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_window_t), intent(in) :: at
      integer(c_int64_t), value :: offset
      integer(c_int64_t), value :: add
      integer(c_int64_t), value :: cookie
      integer(c_int) :: mesh_fetch_add
    end function
    function mesh_compare_swap(lane, at, offset, expected, desired, cookie) bind(C, name='verbena_mesh_compare_swap')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_window_t), intent(in) :: at
      integer(c_int64_t), value :: offset
      integer(c_int64_t), value :: expected
      integer(c_int64_t), value :: desired
      integer(c_int64_t), value :: cookie
      integer(c_int) :: mesh_compare_swap
    end function
    function mesh_flush(lane) bind(C, name='verbena_mesh_flush')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int) :: mesh_flush
    end function
    function mesh_flush_peer(lane, peer) bind(C, name='verbena_mesh_flush_peer')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      integer(c_int) :: mesh_flush_peer
    end function
    function mesh_release(lane, message) bind(C, name='verbena_mesh_release')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_completion_t), intent(in) :: message
      integer(c_int) :: mesh_release
    end function
    function mesh_barrier(lane, timeout_ms) bind(C, name='verbena_mesh_barrier')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: timeout_ms
      integer(c_int) :: mesh_barrier
    end function
    function mesh_lane_counters(lane, counters) bind(C, name='verbena_mesh_lane_counters')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_counters_t), intent(out) :: counters
      integer(c_int) :: mesh_lane_counters
    end function
  end interface
  public :: mesh_carrier_destroy, mesh_leave, mesh_lane, mesh_allocate, mesh_add, mesh_reserve, mesh_commit, &
    mesh_commit_imm, mesh_cancel, mesh_write, mesh_write_imm, mesh_read, mesh_fetch_add, mesh_compare_swap, &
    mesh_flush, mesh_flush_peer, mesh_release, mesh_barrier, mesh_lane_counters

  ! --- C functions behind the procedures below ----------------------------------------------------------------------
  interface
    subroutine c_rdmaOptionsInit(options) bind(C, name='verbena_rdmaOptionsInit')
      import
      type(c_options), intent(out) :: options
    end subroutine
    function c_rdmaServerSetOptions(listener, options) bind(C, name='verbena_rdmaServerSetOptions')
      import
      type(rdma_listener), value :: listener
      type(c_options), intent(in) :: options
      integer(c_int) :: c_rdmaServerSetOptions
    end function
    function c_rdmaConnSetOptions(conn, options) bind(C, name='verbena_rdmaConnSetOptions')
      import
      type(rdma_conn), value :: conn
      type(c_options), intent(in) :: options
      integer(c_int) :: c_rdmaConnSetOptions
    end function
    function c_rdmaConnIsConnected(conn) bind(C, name='verbena_rdmaConnIsConnected')
      import
      type(rdma_conn), value :: conn
      integer(c_int) :: c_rdmaConnIsConnected
    end function
    function c_rdmaErrorString(code) bind(C, name='verbena_rdmaErrorString')
      import
      integer(c_int), value :: code
      type(c_ptr) :: c_rdmaErrorString
    end function
    function c_rdmaErrorDetail() bind(C, name='verbena_rdmaErrorDetail')
      import
      type(c_ptr) :: c_rdmaErrorDetail
    end function
    function c_rdmaServer(listener, ip, port) bind(C, name='verbena_rdmaServer')
      import
      type(rdma_listener), intent(out) :: listener
      character(kind=c_char), intent(in) :: ip(*)
      integer(c_int), value :: port
      integer(c_int) :: c_rdmaServer
    end function
    function c_rdmaServerOnAccept(listener, func, user) bind(C, name='verbena_rdmaServerOnAccept')
      import
      type(rdma_listener), value :: listener
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int) :: c_rdmaServerOnAccept
    end function
    function c_rdmaServerOnMessage(listener, func, user) bind(C, name='verbena_rdmaServerOnMessage')
      import
      type(rdma_listener), value :: listener
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int) :: c_rdmaServerOnMessage
    end function
    function c_rdmaServerOnDisconnect(listener, func, user) bind(C, name='verbena_rdmaServerOnDisconnect')
      import
      type(rdma_listener), value :: listener
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int) :: c_rdmaServerOnDisconnect
    end function
    function c_rdmaConnOnConnect(conn, func, user) bind(C, name='verbena_rdmaConnOnConnect')
      import
      type(rdma_conn), value :: conn
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int) :: c_rdmaConnOnConnect
    end function
    function c_rdmaConnOnMessage(conn, func, user) bind(C, name='verbena_rdmaConnOnMessage')
      import
      type(rdma_conn), value :: conn
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int) :: c_rdmaConnOnMessage
    end function
    function c_rdmaConnOnDisconnect(conn, func, user) bind(C, name='verbena_rdmaConnOnDisconnect')
      import
      type(rdma_conn), value :: conn
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int) :: c_rdmaConnOnDisconnect
    end function
    function c_rdmaConnect(conn, ip, port) bind(C, name='verbena_rdmaConnect')
      import
      type(rdma_conn), value :: conn
      character(kind=c_char), intent(in) :: ip(*)
      integer(c_int), value :: port
      integer(c_int) :: c_rdmaConnect
    end function
    function c_rdmaConnSend(conn, data, data_len) bind(C, name='verbena_rdmaConnSend')
      import
      type(rdma_conn), value :: conn
      type(c_ptr), value :: data
      integer(c_size_t), value :: data_len
      integer(c_size_t) :: c_rdmaConnSend
    end function
    function c_rdmaConnSendWithImm(conn, imm_data, data, data_len) bind(C, name='verbena_rdmaConnSendWithImm')
      import
      type(rdma_conn), value :: conn
      integer(c_int32_t), value :: imm_data
      type(c_ptr), value :: data
      integer(c_size_t), value :: data_len
      integer(c_size_t) :: c_rdmaConnSendWithImm
    end function
    function c_rdmaConnRecv(conn, buffer, buffer_len, incoming, timeout_ms) bind(C, name='verbena_rdmaConnRecv')
      import
      type(rdma_conn), value :: conn
      type(c_ptr), value :: buffer
      integer(c_size_t), value :: buffer_len
      type(rdma_incoming), intent(out) :: incoming
      integer(c_int), value :: timeout_ms
      integer(c_int) :: c_rdmaConnRecv
    end function
    function c_rdmaConnWrite(conn, data, data_len) bind(C, name='verbena_rdmaConnWrite')
      import
      type(rdma_conn), value :: conn
      type(c_ptr), value :: data
      integer(c_size_t), value :: data_len
      integer(c_size_t) :: c_rdmaConnWrite
    end function
    function c_rdmaConnWriteAt(conn, offset, data, data_len) bind(C, name='verbena_rdmaConnWriteAt')
      import
      type(rdma_conn), value :: conn
      integer(c_size_t), value :: offset
      type(c_ptr), value :: data
      integer(c_size_t), value :: data_len
      integer(c_size_t) :: c_rdmaConnWriteAt
    end function
    function c_rdmaConnWriteWithImm(conn, imm_data, data, data_len) bind(C, name='verbena_rdmaConnWriteWithImm')
      import
      type(rdma_conn), value :: conn
      integer(c_int32_t), value :: imm_data
      type(c_ptr), value :: data
      integer(c_size_t), value :: data_len
      integer(c_int) :: c_rdmaConnWriteWithImm
    end function
    function c_rdmaConnWriteWithImmAt(conn, imm_data, offset, data, data_len) &
        bind(C, name='verbena_rdmaConnWriteWithImmAt')
      import
      type(rdma_conn), value :: conn
      integer(c_int32_t), value :: imm_data
      integer(c_size_t), value :: offset
      type(c_ptr), value :: data
      integer(c_size_t), value :: data_len
      integer(c_int) :: c_rdmaConnWriteWithImmAt
    end function
    function c_rdmaConnRead(conn, data, data_len) bind(C, name='verbena_rdmaConnRead')
      import
      type(rdma_conn), value :: conn
      type(c_ptr), value :: data
      integer(c_size_t), value :: data_len
      integer(c_int) :: c_rdmaConnRead
    end function
    function c_rdmaConnReadAt(conn, offset, data, data_len) bind(C, name='verbena_rdmaConnReadAt')
      import
      type(rdma_conn), value :: conn
      integer(c_size_t), value :: offset
      type(c_ptr), value :: data
      integer(c_size_t), value :: data_len
      integer(c_int) :: c_rdmaConnReadAt
    end function
    function c_rdmaConnOnWrite(conn, func, user) bind(C, name='verbena_rdmaConnOnWrite')
      import
      type(rdma_conn), value :: conn
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int) :: c_rdmaConnOnWrite
    end function
    function c_rdmaConnOnRead(conn, func, user) bind(C, name='verbena_rdmaConnOnRead')
      import
      type(rdma_conn), value :: conn
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int) :: c_rdmaConnOnRead
    end function
    function c_rdmaServerPublish(listener, name, memory) bind(C, name='verbena_rdmaServerPublish')
      import
      type(rdma_listener), value :: listener
      character(kind=c_char), intent(in) :: name(*)
      type(rdma_memory), intent(in), optional :: memory
      integer(c_int) :: c_rdmaServerPublish
    end function
    function c_rdmaConnPublish(conn, name, memory) bind(C, name='verbena_rdmaConnPublish')
      import
      type(rdma_conn), value :: conn
      character(kind=c_char), intent(in) :: name(*)
      type(rdma_memory), intent(in), optional :: memory
      integer(c_int) :: c_rdmaConnPublish
    end function
    function c_rdmaConnLookup(conn, name, window, timeout_ms) bind(C, name='verbena_rdmaConnLookup')
      import
      type(rdma_conn), value :: conn
      character(kind=c_char), intent(in) :: name(*)
      type(rdma_window), intent(out) :: window
      integer(c_int), value :: timeout_ms
      integer(c_int) :: c_rdmaConnLookup
    end function
    function c_rdmaConnWindowMemory(conn) bind(C, name='verbena_rdmaConnWindowMemory')
      import
      type(rdma_conn), value :: conn
      type(c_ptr) :: c_rdmaConnWindowMemory
    end function
    function c_rdmaConnRegMem(conn, size) bind(C, name='verbena_rdmaConnRegMem')
      import
      type(rdma_conn), value :: conn
      integer(c_size_t), value :: size
      type(c_ptr) :: c_rdmaConnRegMem
    end function
    function c_rdmaServerRegMem(listener, size) bind(C, name='verbena_rdmaServerRegMem')
      import
      type(rdma_listener), value :: listener
      integer(c_size_t), value :: size
      type(c_ptr) :: c_rdmaServerRegMem
    end function
    function c_rdmaConnRegister(conn, addr, length, access) bind(C, name='verbena_rdmaConnRegister')
      import
      type(rdma_conn), value :: conn
      type(c_ptr), value :: addr
      integer(c_size_t), value :: length
      integer(c_int), value :: access
      type(c_ptr) :: c_rdmaConnRegister
    end function
    function c_rdmaServerRegister(listener, addr, length, access) bind(C, name='verbena_rdmaServerRegister')
      import
      type(rdma_listener), value :: listener
      type(c_ptr), value :: addr
      integer(c_size_t), value :: length
      integer(c_int), value :: access
      type(c_ptr) :: c_rdmaServerRegister
    end function
    function c_rdmaServerAddress(listener, address, length) bind(C, name='verbena_rdmaServerAddress')
      import
      type(rdma_listener), value :: listener
      character(kind=c_char), intent(out) :: address(*)
      integer(c_size_t), value :: length
      integer(c_int) :: c_rdmaServerAddress
    end function
    subroutine c_rdmaNodeOptionsInit(options) bind(C, name='verbena_rdmaNodeOptionsInit')
      import
      type(c_node_options), intent(out) :: options
    end subroutine
    function c_rdmaNode(node, options) bind(C, name='verbena_rdmaNode')
      import
      type(rdma_node), intent(out) :: node
      type(c_node_options), intent(in), optional :: options
      integer(c_int) :: c_rdmaNode
    end function
    function c_rdmaNodeRegMem(node, size) bind(C, name='verbena_rdmaNodeRegMem')
      import
      type(rdma_node), value :: node
      integer(c_size_t), value :: size
      type(c_ptr) :: c_rdmaNodeRegMem
    end function
    function c_rdmaNodeRegister(node, addr, length, access) bind(C, name='verbena_rdmaNodeRegister')
      import
      type(rdma_node), value :: node
      type(c_ptr), value :: addr
      integer(c_size_t), value :: length
      integer(c_int), value :: access
      type(c_ptr) :: c_rdmaNodeRegister
    end function
    function c_rdmaNodePublish(node, name, memory) bind(C, name='verbena_rdmaNodePublish')
      import
      type(rdma_node), value :: node
      character(kind=c_char), intent(in) :: name(*)
      type(rdma_memory), intent(in), optional :: memory
      integer(c_int) :: c_rdmaNodePublish
    end function
    function c_rdmaNodePublishPart(node, name, memory, offset, length) bind(C, name='verbena_rdmaNodePublishPart')
      import
      type(rdma_node), value :: node
      character(kind=c_char), intent(in) :: name(*)
      type(rdma_memory), intent(in) :: memory
      integer(c_size_t), value :: offset
      integer(c_size_t), value :: length
      integer(c_int) :: c_rdmaNodePublishPart
    end function
    function c_rdmaServerPublishPart(listener, name, memory, offset, length) &
        bind(C, name='verbena_rdmaServerPublishPart')
      import
      type(rdma_listener), value :: listener
      character(kind=c_char), intent(in) :: name(*)
      type(rdma_memory), intent(in) :: memory
      integer(c_size_t), value :: offset
      integer(c_size_t), value :: length
      integer(c_int) :: c_rdmaServerPublishPart
    end function
    function c_rdmaConnPublishPart(conn, name, memory, offset, length) bind(C, name='verbena_rdmaConnPublishPart')
      import
      type(rdma_conn), value :: conn
      character(kind=c_char), intent(in) :: name(*)
      type(rdma_memory), intent(in) :: memory
      integer(c_size_t), value :: offset
      integer(c_size_t), value :: length
      integer(c_int) :: c_rdmaConnPublishPart
    end function
    function c_verbena_version() bind(C, name='verbena_version')
      import
      type(c_ptr) :: c_verbena_version
    end function
    subroutine c_verbena_set_log(func, user, least) bind(C, name='verbena_set_log')
      import
      type(c_funptr), value :: func
      type(c_ptr), value :: user
      integer(c_int), value :: least
    end subroutine
    function c_strlen(text) bind(C, name='strlen')
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: c_strlen
    end function
  end interface
  public :: rdmaOptionsInit, rdmaServerSetOptions, rdmaConnSetOptions, rdmaConnIsConnected, rdmaErrorDetail, &
    rdmaErrorText, rdmaServer, rdmaServerOnAccept, rdmaServerOnMessage, rdmaServerOnDisconnect, &
    rdmaConnOnConnect, rdmaConnOnMessage, rdmaConnOnDisconnect, rdmaConnect, rdmaConnSend, rdmaConnSendWithImm, &
    rdmaConnRecv, rdmaConnWrite, rdmaConnWriteAt, rdmaConnWriteWithImm, rdmaConnWriteWithImmAt, rdmaConnRead, &
    rdmaConnReadAt
  public :: rdmaServerAddress, rdmaServerPublishPart, rdmaConnPublishPart, rdmaNodeOptionsInit, rdmaNode, &
    rdmaNodeRegMem, rdmaNodeRegister, rdmaNodePublish, rdmaNodePublishPart, verbena_version, verbena_set_log, &
    verbenaLogLine
  public :: rdmaAddress, rdmaConnOnWrite, rdmaConnOnRead, rdmaServerPublish, rdmaConnPublish, rdmaConnLookup, &
    rdmaConnWindowMemory, rdmaConnRegMem, rdmaServerRegMem, rdmaConnRegister, rdmaServerRegister

  ! --- C functions of the mesh behind the procedures below ----------------------------------------------------------
  interface
    function c_mesh_error_string(code) bind(C, name='verbena_mesh_error_string')
      import
      integer(c_int), value :: code
      type(c_ptr) :: c_mesh_error_string
    end function
    function c_mesh_error_detail() bind(C, name='verbena_mesh_error_detail')
      import
      type(c_ptr) :: c_mesh_error_detail
    end function
    function c_mesh_options_init(options) bind(C, name='verbena_mesh_options_init')
      import
      type(c_mesh_options), intent(out) :: options
      integer(c_int) :: c_mesh_options_init
    end function
    function c_mesh_carrier_directory(directory, job, carrier) bind(C, name='verbena_mesh_carrier_directory')
      import
      character(kind=c_char), intent(in) :: directory(*)
      character(kind=c_char), intent(in) :: job(*)
      type(mesh_carrier_t), intent(out) :: carrier
      integer(c_int) :: c_mesh_carrier_directory
    end function
    function c_mesh_carrier_hosts(hosts, count, carrier) bind(C, name='verbena_mesh_carrier_hosts')
      import
      type(c_ptr), intent(in) :: hosts(*)
      integer(c_size_t), value :: count
      type(mesh_carrier_t), intent(out) :: carrier
      integer(c_int) :: c_mesh_carrier_hosts
    end function
    function c_mesh_carrier_gather(processes, gather, context, carrier) bind(C, name='verbena_mesh_carrier_gather')
      import
      integer(c_int), value :: processes
      type(c_funptr), value :: gather
      type(c_ptr), value :: context
      type(mesh_carrier_t), intent(out) :: carrier
      integer(c_int) :: c_mesh_carrier_gather
    end function
    function c_mesh_join(options, carrier, mesh) bind(C, name='verbena_mesh_join')
      import
      type(c_mesh_options), intent(in) :: options
      type(mesh_carrier_t), value :: carrier
      type(mesh_t), intent(out) :: mesh
      integer(c_int) :: c_mesh_join
    end function
    function c_mesh_description(mesh) bind(C, name='verbena_mesh_description')
      import
      type(mesh_t), value :: mesh
      type(c_ptr) :: c_mesh_description
    end function
    function c_mesh_publish(mesh, name, memory, bytes) bind(C, name='verbena_mesh_publish')
      import
      type(mesh_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), value :: memory
      integer(c_size_t), value :: bytes
      integer(c_int) :: c_mesh_publish
    end function
    function c_mesh_is_here(lane, peer) bind(C, name='verbena_mesh_is_here')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      integer(c_int) :: c_mesh_is_here
    end function
    function c_mesh_send(lane, peer, message, bytes, cookie) bind(C, name='verbena_mesh_send')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      type(c_ptr), value :: message
      integer(c_size_t), value :: bytes
      integer(c_int64_t), value :: cookie
      integer(c_int) :: c_mesh_send
    end function
    function c_mesh_send_imm(lane, peer, message, bytes, cookie, immediate) bind(C, name='verbena_mesh_send_imm')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      type(c_ptr), value :: message
      integer(c_size_t), value :: bytes
      integer(c_int64_t), value :: cookie
      integer(c_int32_t), value :: immediate
      integer(c_int) :: c_mesh_send_imm
    end function
    function c_mesh_find(lane, peer, name, timeout_ms, window) bind(C, name='verbena_mesh_find')
      import
      type(mesh_lane_t), value :: lane
      integer(c_int), value :: peer
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: timeout_ms
      type(mesh_window_t), intent(out) :: window
      integer(c_int) :: c_mesh_find
    end function
    function c_mesh_poll(lane, out, count, which) bind(C, name='verbena_mesh_poll')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_completion_t), intent(out) :: out(*)
      integer(c_size_t), value :: count
      integer(c_int), value :: which
      integer(c_int) :: c_mesh_poll
    end function
    function c_mesh_wait(lane, out, count, which, timeout_ms) bind(C, name='verbena_mesh_wait')
      import
      type(mesh_lane_t), value :: lane
      type(mesh_completion_t), intent(out) :: out(*)
      integer(c_size_t), value :: count
      integer(c_int), value :: which
      integer(c_int), value :: timeout_ms
      integer(c_int) :: c_mesh_wait
    end function
    function c_mesh_gather(lane, mine, bytes_each, all, timeout_ms) bind(C, name='verbena_mesh_gather')
      import
      type(mesh_lane_t), value :: lane
      type(c_ptr), value :: mine
      integer(c_size_t), value :: bytes_each
      type(c_ptr), value :: all
      integer(c_int), value :: timeout_ms
      integer(c_int) :: c_mesh_gather
    end function
  end interface
  public :: mesh_error_text, mesh_error_detail, mesh_options_init, mesh_carrier_directory, mesh_carrier_hosts, &
    mesh_carrier_gather, mesh_join, mesh_description, mesh_publish, mesh_is_here, mesh_send, mesh_send_imm, mesh_find, &
    mesh_poll, mesh_wait, mesh_gather

  ! --- the store: calls with the same arguments as in C ----------------------------------------------------------
  interface
    function kv_client_create(mode) bind(C, name='verbena_kv_client_create')
      import
      integer(c_int), value :: mode
      type(kv_client_t) :: kv_client_create
    end function
    function kv_client_disconnect(client) bind(C, name='verbena_kv_client_disconnect')
      import
      type(kv_client_t), value :: client
      integer(c_int) :: kv_client_disconnect
    end function
    subroutine kv_client_destroy(client) bind(C, name='verbena_kv_client_destroy')
      import
      type(kv_client_t), value :: client
    end subroutine
    function kv_client_cell_fetch_add(client, cell, delta, old) bind(C, name='verbena_kv_client_cell_fetch_add')
      import
      type(kv_client_t), value :: client
      type(kv_cell_t), intent(in) :: cell
      integer(c_int64_t), value :: delta
      integer(c_int64_t), intent(out), optional :: old
      integer(c_int) :: kv_client_cell_fetch_add
    end function
    function kv_client_cell_compare_swap(client, cell, expected, desired, old) &
        bind(C, name='verbena_kv_client_cell_compare_swap')
      import
      type(kv_client_t), value :: client
      type(kv_cell_t), intent(in) :: cell
      integer(c_int64_t), value :: expected
      integer(c_int64_t), value :: desired
      integer(c_int64_t), intent(inout), optional :: old
      integer(c_int) :: kv_client_cell_compare_swap
    end function
    function kv_client_cell_read(client, cell, value) bind(C, name='verbena_kv_client_cell_read')
      import
      type(kv_client_t), value :: client
      type(kv_cell_t), intent(in) :: cell
      integer(c_int64_t), intent(out) :: value
      integer(c_int) :: kv_client_cell_read
    end function
    function kv_key_page_next(page, at, klen) bind(C, name='verbena_kv_key_page_next')
      import
      type(kv_key_page_t), intent(in) :: page
      integer(c_size_t), intent(inout) :: at
      integer(c_size_t), intent(out) :: klen
      type(c_ptr) :: kv_key_page_next
    end function
    function kv_client_allocate(client, bytes) bind(C, name='verbena_kv_client_allocate')
      import
      type(kv_client_t), value :: client
      integer(c_size_t), value :: bytes
      type(c_ptr) :: kv_client_allocate
    end function
    function kv_server_start(server) bind(C, name='verbena_kv_server_start')
      import
      type(kv_server_t), value :: server
      integer(c_int) :: kv_server_start
    end function
    function kv_server_port(server) bind(C, name='verbena_kv_server_port')
      import
      type(kv_server_t), value :: server
      integer(c_int) :: kv_server_port
    end function
    function kv_server_stop(server) bind(C, name='verbena_kv_server_stop')
      import
      type(kv_server_t), value :: server
      integer(c_int) :: kv_server_stop
    end function
    subroutine kv_server_destroy(server) bind(C, name='verbena_kv_server_destroy')
      import
      type(kv_server_t), value :: server
    end subroutine
  end interface
  public :: kv_client_create, kv_client_disconnect, kv_client_destroy, kv_client_cell_fetch_add, &
    kv_client_cell_compare_swap, kv_client_cell_read, kv_key_page_next, kv_client_allocate, kv_server_start, &
    kv_server_port, kv_server_stop, kv_server_destroy

  ! --- C functions of the store behind the procedures below -----------------------------------------------------
  interface
    function c_kv_error_string(code) bind(C, name='verbena_kv_error_string')
      import
      integer(c_int), value :: code
      type(c_ptr) :: c_kv_error_string
    end function
    function c_kv_error_detail() bind(C, name='verbena_kv_error_detail')
      import
      type(c_ptr) :: c_kv_error_detail
    end function
    function c_kv_client_options_init(options) bind(C, name='verbena_kv_client_options_init')
      import
      type(c_kv_client_options), intent(out) :: options
      integer(c_int) :: c_kv_client_options_init
    end function
    function c_kv_client_set_options(client, options) bind(C, name='verbena_kv_client_set_options')
      import
      type(kv_client_t), value :: client
      type(c_kv_client_options), intent(in) :: options
      integer(c_int) :: c_kv_client_set_options
    end function
    function c_kv_client_connect(client, ip, port) bind(C, name='verbena_kv_client_connect')
      import
      type(kv_client_t), value :: client
      character(kind=c_char), intent(in) :: ip(*)
      integer(c_int), value :: port
      integer(c_int) :: c_kv_client_connect
    end function
    function c_kv_client_connect_socket(client, ip, port, device) bind(C, name='verbena_kv_client_connect_socket')
      import
      type(kv_client_t), value :: client
      character(kind=c_char), intent(in) :: ip(*)
      integer(c_int), value :: port
      character(kind=c_char), intent(in), optional :: device(*)
      integer(c_int) :: c_kv_client_connect_socket
    end function
    function c_kv_client_put(client, key, klen, value, vlen) bind(C, name='verbena_kv_client_put')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: key
      integer(c_size_t), value :: klen
      type(c_ptr), value :: value
      integer(c_size_t), value :: vlen
      integer(c_int) :: c_kv_client_put
    end function
    function c_kv_client_get(client, key, klen, buf, len) bind(C, name='verbena_kv_client_get')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: key
      integer(c_size_t), value :: klen
      type(c_ptr), value :: buf
      integer(c_size_t), intent(inout) :: len
      integer(c_int) :: c_kv_client_get
    end function
    function c_kv_client_get_version(client, key, klen, buf, len, version) bind(C, name='verbena_kv_client_get_version')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: key
      integer(c_size_t), value :: klen
      type(c_ptr), value :: buf
      integer(c_size_t), intent(inout) :: len
      integer(c_int64_t), intent(out), optional :: version
      integer(c_int) :: c_kv_client_get_version
    end function
    function c_kv_client_cas(client, key, klen, expected, value, vlen, version) bind(C, name='verbena_kv_client_cas')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: key
      integer(c_size_t), value :: klen
      integer(c_int64_t), value :: expected
      type(c_ptr), value :: value
      integer(c_size_t), value :: vlen
      integer(c_int64_t), intent(inout), optional :: version
      integer(c_int) :: c_kv_client_cas
    end function
    function c_kv_client_delete(client, key, klen) bind(C, name='verbena_kv_client_delete')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: key
      integer(c_size_t), value :: klen
      integer(c_int) :: c_kv_client_delete
    end function
    function c_kv_client_cell_open(client, key, klen, initial, cell) bind(C, name='verbena_kv_client_cell_open')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: key
      integer(c_size_t), value :: klen
      integer(c_int64_t), value :: initial
      type(kv_cell_t), intent(out) :: cell
      integer(c_int) :: c_kv_client_cell_open
    end function
    function c_kv_client_put_ttl(client, key, klen, value, vlen, ttl_ms) bind(C, name='verbena_kv_client_put_ttl')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: key
      integer(c_size_t), value :: klen
      type(c_ptr), value :: value
      integer(c_size_t), value :: vlen
      integer(c_int64_t), value :: ttl_ms
      integer(c_int) :: c_kv_client_put_ttl
    end function
    function c_kv_client_get_ttl(client, key, klen, left_ms) bind(C, name='verbena_kv_client_get_ttl')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: key
      integer(c_size_t), value :: klen
      integer(c_int64_t), intent(out) :: left_ms
      integer(c_int) :: c_kv_client_get_ttl
    end function
    function c_kv_client_keys(client, prefix, plen, cursor, page) bind(C, name='verbena_kv_client_keys')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: prefix
      integer(c_size_t), value :: plen
      type(kv_cursor_t), intent(inout) :: cursor
      type(kv_key_page_t), intent(out) :: page
      integer(c_int) :: c_kv_client_keys
    end function
    function c_kv_client_flush(client, prefix, plen, erased) bind(C, name='verbena_kv_client_flush')
      import
      type(kv_client_t), value :: client
      type(c_ptr), value :: prefix
      integer(c_size_t), value :: plen
      integer(c_int64_t), intent(out), optional :: erased
      integer(c_int) :: c_kv_client_flush
    end function
    function c_kv_client_get_items(client, items, count) bind(C, name='verbena_kv_client_get_items')
      import
      type(kv_client_t), value :: client
      type(kv_get_item_t), intent(inout) :: items(*)
      integer(c_size_t), value :: count
      integer(c_int) :: c_kv_client_get_items
    end function
    function c_kv_client_put_items(client, items, count) bind(C, name='verbena_kv_client_put_items')
      import
      type(kv_client_t), value :: client
      type(kv_put_item_t), intent(inout) :: items(*)
      integer(c_size_t), value :: count
      integer(c_int) :: c_kv_client_put_items
    end function
    function c_kv_client_put_items_ttl(client, items, count, ttl_ms) bind(C, name='verbena_kv_client_put_items_ttl')
      import
      type(kv_client_t), value :: client
      type(kv_put_item_t), intent(inout) :: items(*)
      integer(c_size_t), value :: count
      integer(c_int64_t), value :: ttl_ms
      integer(c_int) :: c_kv_client_put_items_ttl
    end function
    function c_kv_client_batch_get(client, keys, klens, values, vlens, count) &
        bind(C, name='verbena_kv_client_batch_get')
      import
      type(kv_client_t), value :: client
      type(c_ptr), intent(in) :: keys(*)
      integer(c_size_t), intent(in) :: klens(*)
      type(c_ptr), intent(in) :: values(*)
      integer(c_size_t), intent(inout) :: vlens(*)
      integer(c_size_t), value :: count
      integer(c_int) :: c_kv_client_batch_get
    end function
    function c_kv_client_batch_put(client, keys, klens, values, vlens, count) &
        bind(C, name='verbena_kv_client_batch_put')
      import
      type(kv_client_t), value :: client
      type(c_ptr), intent(in) :: keys(*)
      integer(c_size_t), intent(in) :: klens(*)
      type(c_ptr), intent(in) :: values(*)
      integer(c_size_t), intent(in) :: vlens(*)
      integer(c_size_t), value :: count
      integer(c_int) :: c_kv_client_batch_put
    end function
    function c_kv_server_options_init(options) bind(C, name='verbena_kv_server_options_init')
      import
      type(c_kv_server_options), intent(out) :: options
      integer(c_int) :: c_kv_server_options_init
    end function
    function c_kv_server_create(options) bind(C, name='verbena_kv_server_create')
      import
      type(c_kv_server_options), intent(in), optional :: options
      type(kv_server_t) :: c_kv_server_create
    end function
    function c_kv_open(server, handle) bind(C, name='verbena_kv_open')
      import
      character(kind=c_char), intent(in) :: server(*)
      type(c_ptr), intent(out) :: handle
      integer(c_int) :: c_kv_open
    end function
    function c_kv_open_with(server, mode, options, handle) bind(C, name='verbena_kv_open_with')
      import
      character(kind=c_char), intent(in) :: server(*)
      integer(c_int), value :: mode
      type(c_kv_client_options), intent(in), optional :: options
      type(c_ptr), intent(out) :: handle
      integer(c_int) :: c_kv_open_with
    end function
    function c_kv_set(handle, key, value) bind(C, name='verbena_kv_set')
      import
      type(c_ptr), value :: handle
      character(kind=c_char), intent(in) :: key(*)
      character(kind=c_char), intent(in) :: value(*)
      integer(c_int) :: c_kv_set
    end function
    function c_kv_get(handle, key, value) bind(C, name='verbena_kv_get')
      import
      type(c_ptr), value :: handle
      character(kind=c_char), intent(in) :: key(*)
      type(c_ptr), intent(out) :: value
      integer(c_int) :: c_kv_get
    end function
    subroutine c_kv_release(value) bind(C, name='verbena_kv_release')
      import
      type(c_ptr), value :: value
    end subroutine
    function c_kv_close(handle) bind(C, name='verbena_kv_close')
      import
      type(c_ptr), value :: handle
      integer(c_int) :: c_kv_close
    end function
  end interface
  public :: kv_client_put_ttl, kv_client_get_ttl, kv_client_put_items_ttl, kv_client_keys, kv_client_flush
  public :: kv_error_text, kv_error_detail, kv_client_options_init, kv_client_set_options, kv_client_connect, &
    kv_client_connect_socket, kv_client_put, kv_client_get, kv_client_get_version, kv_client_cas, kv_client_delete, &
    kv_client_cell_open, kv_client_get_items, kv_client_put_items, kv_client_batch_get, kv_client_batch_put, &
    kv_server_options_init, kv_server_create, kv_open, kv_open_with, kv_set, kv_get, kv_close

contains

  ! --- text ---------------------------------------------------------------------------------------------------------

  function text_of(from) result(text)
    type(c_ptr), intent(in) :: from
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    integer :: i
    call c_f_pointer(from, characters, [c_strlen(from)])
    allocate (character(len=size(characters)) :: text)
    do i = 1, size(characters)
      text(i:i) = characters(i)
    end do
  end function

  ! Cause and fix of an error code: rdmaErrorString in C.
  function rdmaErrorText(code) result(text)
    integer(c_int), intent(in) :: code
    character(len=:), allocatable :: text
    text = text_of(c_rdmaErrorString(code))
  end function

  function rdmaErrorDetail() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_rdmaErrorDetail())
  end function

  ! --- options ------------------------------------------------------------------------------------------------------

  subroutine rdmaOptionsInit(options)
    type(rdma_options), intent(out) :: options
    type(c_options) :: c
    call c_rdmaOptionsInit(c)
    options%bootstrap = c%bootstrap
    options%connect_timeout_ms = c%connect_timeout_ms
    options%timeout_ms = c%timeout_ms
    options%max_connections = c%max_connections
    options%recv_mode = c%recv_mode
    options%window = c%window
    options%window_bytes = c%window_bytes
    options%inbox_bytes = c%inbox_bytes
    options%max_message_bytes = c%max_message_bytes
    options%shared_window = c%shared_window
    options%gid_index = c%gid_index
    options%node = c%node
  end subroutine

  ! The list of numbers as C takes it: null and 0 if it is unallocated. `list` must outlive the pointer.
  subroutine list_to_c(list, first, count)
    integer(c_int), allocatable, intent(in), target :: list(:)
    type(c_ptr), intent(out) :: first
    integer(c_size_t), intent(out) :: count
    first = c_null_ptr
    count = 0
    if (.not. allocated(list)) return
    if (size(list) == 0) return
    first = c_loc(list(1))
    count = size(list, kind=c_size_t)
  end subroutine

  ! The arguments must outlive the result. The texts end with a null character.
  function c_options_of(options, device, key_file, key_name) result(c)
    type(rdma_options), intent(in), target :: options
    character(kind=c_char, len=*), intent(in), target :: device, key_file, key_name
    type(c_options) :: c
    c%device = c_loc(device)
    c%bootstrap = options%bootstrap
    c%connect_timeout_ms = options%connect_timeout_ms
    c%timeout_ms = options%timeout_ms
    c%max_connections = options%max_connections
    c%recv_mode = options%recv_mode
    c%window = options%window
    c%window_bytes = options%window_bytes
    c%inbox_bytes = options%inbox_bytes
    c%max_message_bytes = options%max_message_bytes
    c%shared_window = options%shared_window
    c%gid_index = options%gid_index
    call list_to_c(options%allowed_uids, c%allowed_uids, c%allowed_uid_count)
    c%key_file = c_loc(key_file)
    c%key_name = c_loc(key_name)
    c%node = options%node
  end function

  function rdmaServerSetOptions(listener, options) result(code)
    type(rdma_listener), value :: listener
    type(rdma_options), intent(in), target :: options
    integer(c_int) :: code
    character(kind=c_char, len=:), allocatable, target :: device, key_file, key_name
    device = trim(options%device)//c_null_char
    key_file = trim(options%key_file)//c_null_char
    key_name = trim(options%key_name)//c_null_char
    code = c_rdmaServerSetOptions(listener, c_options_of(options, device, key_file, key_name))
  end function

  function rdmaConnSetOptions(conn, options) result(code)
    type(rdma_conn), value :: conn
    type(rdma_options), intent(in), target :: options
    integer(c_int) :: code
    character(kind=c_char, len=:), allocatable, target :: device, key_file, key_name
    device = trim(options%device)//c_null_char
    key_file = trim(options%key_file)//c_null_char
    key_name = trim(options%key_name)//c_null_char
    code = c_rdmaConnSetOptions(conn, c_options_of(options, device, key_file, key_name))
  end function

  ! --- version and log ----------------------------------------------------------------------------------------------

  function verbena_version() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_verbena_version())
  end function

  ! Without `func` nobody gets lines any more.
  subroutine verbena_set_log(func, user, least)
    procedure(verbena_log_procedure), optional :: func
    type(c_ptr), intent(in), optional :: user
    integer(c_int), intent(in), optional :: least
    type(c_funptr) :: to
    type(c_ptr) :: pointer
    integer(c_int) :: level
    to = c_null_funptr
    pointer = c_null_ptr
    level = VERBENA_LOG_INFO
    if (present(func)) to = c_funloc(func)
    if (present(user)) pointer = user
    if (present(least)) level = least
    call c_verbena_set_log(to, pointer, level)
  end subroutine

  ! The line that a verbena_log_procedure gets, as text.
  function verbenaLogLine(line) result(text)
    type(c_ptr), intent(in) :: line
    character(len=:), allocatable :: text
    text = text_of(line)
  end function

  ! --- nodes --------------------------------------------------------------------------------------------------------

  subroutine rdmaNodeOptionsInit(options)
    type(rdma_node_options), intent(out) :: options
    type(c_node_options) :: c
    call c_rdmaNodeOptionsInit(c)
    options%bootstrap = c%bootstrap
    options%gid_index = c%gid_index
    options%shards = c%shards
    options%connections = c%connections
  end subroutine

  ! Returns RDMA_ERR_BAD_ARGUMENT also if options%cpus does not name as many cores as there are shards.
  function rdmaNode(node, options) result(code)
    type(rdma_node), intent(out) :: node
    type(rdma_node_options), intent(in), target, optional :: options
    integer(c_int) :: code
    character(kind=c_char, len=:), allocatable, target :: device, address
    type(c_node_options) :: c
    integer(c_size_t) :: cpus
    if (.not. present(options)) then
      code = c_rdmaNode(node)
      return
    end if
    device = trim(options%device)//c_null_char
    address = trim(options%address)//c_null_char
    c%device = c_loc(device)
    c%bootstrap = options%bootstrap
    c%gid_index = options%gid_index
    c%address = c_loc(address)
    c%shards = options%shards
    c%connections = options%connections
    call list_to_c(options%cpus, c%cpus, cpus)
    call list_to_c(options%allowed_uids, c%allowed_uids, c%allowed_uid_count)
    if (cpus /= 0 .and. cpus /= options%shards) then
      code = RDMA_ERR_BAD_ARGUMENT
      return
    end if
    code = c_rdmaNode(node, c)
  end function

  function rdmaNodeRegMem(node, size) result(memory)
    type(rdma_node), value :: node
    integer(c_size_t), value :: size
    type(rdma_memory), pointer :: memory
    memory => memory_of(c_rdmaNodeRegMem(node, size))
  end function

  function rdmaNodeRegister(node, addr, length, access) result(memory)
    type(rdma_node), value :: node
    type(c_ptr), value :: addr
    integer(c_size_t), value :: length
    integer(c_int), value :: access
    type(rdma_memory), pointer :: memory
    memory => memory_of(c_rdmaNodeRegister(node, addr, length, access))
  end function

  function rdmaNodePublish(node, name, memory) result(code)
    type(rdma_node), value :: node
    character(len=*), intent(in) :: name
    type(rdma_memory), intent(in), optional :: memory
    integer(c_int) :: code
    code = c_rdmaNodePublish(node, trim(name)//c_null_char, memory)
  end function

  function rdmaNodePublishPart(node, name, memory, offset, length) result(code)
    type(rdma_node), value :: node
    character(len=*), intent(in) :: name
    type(rdma_memory), intent(in) :: memory
    integer(c_size_t), value :: offset
    integer(c_size_t), value :: length
    integer(c_int) :: code
    code = c_rdmaNodePublishPart(node, trim(name)//c_null_char, memory, offset, length)
  end function

  ! --- servers, connections and data --------------------------------------------------------------------------------

  function rdmaConnIsConnected(conn) result(is)
    type(rdma_conn), value :: conn
    logical :: is
    is = c_rdmaConnIsConnected(conn) /= 0
  end function

  function rdmaServer(listener, ip, port) result(code)
    type(rdma_listener), intent(out) :: listener
    character(len=*), intent(in) :: ip
    integer(c_int), value :: port
    integer(c_int) :: code
    code = c_rdmaServer(listener, trim(ip)//c_null_char, port)
  end function

  ! The address for peers on any host. '' if the listener does not run; rdmaErrorDetail says so.
  function rdmaServerAddress(listener) result(text)
    type(rdma_listener), value :: listener
    character(len=:), allocatable :: text
    character(kind=c_char), target :: address(1024)
    integer(c_int) :: code
    code = c_rdmaServerAddress(listener, address, size(address, kind=c_size_t))
    if (code == RDMA_OK) then
      text = text_of(c_loc(address))
    else
      text = ''
    end if
  end function

  function rdmaServerOnAccept(listener, func, user) result(code)
    type(rdma_listener), value :: listener
    procedure(rdma_conn_procedure) :: func
    type(c_ptr), value :: user
    integer(c_int) :: code
    code = c_rdmaServerOnAccept(listener, c_funloc(func), user)
  end function

  function rdmaServerOnMessage(listener, func, user) result(code)
    type(rdma_listener), value :: listener
    procedure(rdma_message_procedure) :: func
    type(c_ptr), value :: user
    integer(c_int) :: code
    code = c_rdmaServerOnMessage(listener, c_funloc(func), user)
  end function

  function rdmaServerOnDisconnect(listener, func, user) result(code)
    type(rdma_listener), value :: listener
    procedure(rdma_disconnect_procedure) :: func
    type(c_ptr), value :: user
    integer(c_int) :: code
    code = c_rdmaServerOnDisconnect(listener, c_funloc(func), user)
  end function

  function rdmaConnOnConnect(conn, func, user) result(code)
    type(rdma_conn), value :: conn
    procedure(rdma_conn_procedure) :: func
    type(c_ptr), value :: user
    integer(c_int) :: code
    code = c_rdmaConnOnConnect(conn, c_funloc(func), user)
  end function

  function rdmaConnOnMessage(conn, func, user) result(code)
    type(rdma_conn), value :: conn
    procedure(rdma_message_procedure) :: func
    type(c_ptr), value :: user
    integer(c_int) :: code
    code = c_rdmaConnOnMessage(conn, c_funloc(func), user)
  end function

  function rdmaConnOnDisconnect(conn, func, user) result(code)
    type(rdma_conn), value :: conn
    procedure(rdma_disconnect_procedure) :: func
    type(c_ptr), value :: user
    integer(c_int) :: code
    code = c_rdmaConnOnDisconnect(conn, c_funloc(func), user)
  end function

  function rdmaConnect(conn, ip, port) result(code)
    type(rdma_conn), value :: conn
    character(len=*), intent(in) :: ip
    integer(c_int), value :: port
    integer(c_int) :: code
    code = c_rdmaConnect(conn, trim(ip)//c_null_char, port)
  end function

  function rdmaConnSend(conn, data, data_len) result(accepted)
    type(rdma_conn), value :: conn
    type(*), dimension(..), intent(in), target, contiguous :: data
    integer(c_size_t), value :: data_len
    integer(c_size_t) :: accepted
    accepted = c_rdmaConnSend(conn, c_loc(data), data_len)
  end function

  function rdmaConnSendWithImm(conn, imm_data, data, data_len) result(accepted)
    type(rdma_conn), value :: conn
    integer(c_int32_t), value :: imm_data
    type(*), dimension(..), intent(in), target, contiguous :: data
    integer(c_size_t), value :: data_len
    integer(c_size_t) :: accepted
    accepted = c_rdmaConnSendWithImm(conn, imm_data, c_loc(data), data_len)
  end function

  function rdmaConnRecv(conn, buffer, buffer_len, incoming, timeout_ms) result(code)
    type(rdma_conn), value :: conn
    type(*), dimension(..), intent(inout), target, contiguous :: buffer
    integer(c_size_t), value :: buffer_len
    type(rdma_incoming), intent(out) :: incoming
    integer(c_int), value :: timeout_ms
    integer(c_int) :: code
    code = c_rdmaConnRecv(conn, c_loc(buffer), buffer_len, incoming, timeout_ms)
  end function

  function rdmaConnWrite(conn, data, data_len) result(accepted)
    type(rdma_conn), value :: conn
    type(*), dimension(..), intent(in), target, contiguous :: data
    integer(c_size_t), value :: data_len
    integer(c_size_t) :: accepted
    accepted = c_rdmaConnWrite(conn, c_loc(data), data_len)
  end function

  function rdmaConnWriteAt(conn, offset, data, data_len) result(accepted)
    type(rdma_conn), value :: conn
    integer(c_size_t), value :: offset
    type(*), dimension(..), intent(in), target, contiguous :: data
    integer(c_size_t), value :: data_len
    integer(c_size_t) :: accepted
    accepted = c_rdmaConnWriteAt(conn, offset, c_loc(data), data_len)
  end function

  function rdmaConnWriteWithImm(conn, imm_data, data, data_len) result(code)
    type(rdma_conn), value :: conn
    integer(c_int32_t), value :: imm_data
    type(*), dimension(..), intent(in), target, contiguous :: data
    integer(c_size_t), value :: data_len
    integer(c_int) :: code
    code = c_rdmaConnWriteWithImm(conn, imm_data, c_loc(data), data_len)
  end function

  function rdmaConnWriteWithImmAt(conn, imm_data, offset, data, data_len) result(code)
    type(rdma_conn), value :: conn
    integer(c_int32_t), value :: imm_data
    integer(c_size_t), value :: offset
    type(*), dimension(..), intent(in), target, contiguous :: data
    integer(c_size_t), value :: data_len
    integer(c_int) :: code
    code = c_rdmaConnWriteWithImmAt(conn, imm_data, offset, c_loc(data), data_len)
  end function

  function rdmaConnRead(conn, data, data_len) result(code)
    type(rdma_conn), value :: conn
    type(*), dimension(..), intent(inout), target, contiguous :: data
    integer(c_size_t), value :: data_len
    integer(c_int) :: code
    code = c_rdmaConnRead(conn, c_loc(data), data_len)
  end function

  function rdmaConnReadAt(conn, offset, data, data_len) result(code)
    type(rdma_conn), value :: conn
    integer(c_size_t), value :: offset
    type(*), dimension(..), intent(inout), target, contiguous :: data
    integer(c_size_t), value :: data_len
    integer(c_int) :: code
    code = c_rdmaConnReadAt(conn, offset, c_loc(data), data_len)
  end function

  function rdmaConnOnWrite(conn, func, user) result(code)
    type(rdma_conn), value :: conn
    procedure(rdma_completion_procedure) :: func
    type(c_ptr), value :: user
    integer(c_int) :: code
    code = c_rdmaConnOnWrite(conn, c_funloc(func), user)
  end function

  function rdmaConnOnRead(conn, func, user) result(code)
    type(rdma_conn), value :: conn
    procedure(rdma_completion_procedure) :: func
    type(c_ptr), value :: user
    integer(c_int) :: code
    code = c_rdmaConnOnRead(conn, c_funloc(func), user)
  end function

  function rdmaServerPublish(listener, name, memory) result(code)
    type(rdma_listener), value :: listener
    character(len=*), intent(in) :: name
    type(rdma_memory), intent(in), optional :: memory
    integer(c_int) :: code
    code = c_rdmaServerPublish(listener, trim(name)//c_null_char, memory)
  end function

  function rdmaConnPublish(conn, name, memory) result(code)
    type(rdma_conn), value :: conn
    character(len=*), intent(in) :: name
    type(rdma_memory), intent(in), optional :: memory
    integer(c_int) :: code
    code = c_rdmaConnPublish(conn, trim(name)//c_null_char, memory)
  end function

  function rdmaServerPublishPart(listener, name, memory, offset, length) result(code)
    type(rdma_listener), value :: listener
    character(len=*), intent(in) :: name
    type(rdma_memory), intent(in) :: memory
    integer(c_size_t), value :: offset
    integer(c_size_t), value :: length
    integer(c_int) :: code
    code = c_rdmaServerPublishPart(listener, trim(name)//c_null_char, memory, offset, length)
  end function

  function rdmaConnPublishPart(conn, name, memory, offset, length) result(code)
    type(rdma_conn), value :: conn
    character(len=*), intent(in) :: name
    type(rdma_memory), intent(in) :: memory
    integer(c_size_t), value :: offset
    integer(c_size_t), value :: length
    integer(c_int) :: code
    code = c_rdmaConnPublishPart(conn, trim(name)//c_null_char, memory, offset, length)
  end function

  function rdmaConnLookup(conn, name, window, timeout_ms) result(code)
    type(rdma_conn), value :: conn
    character(len=*), intent(in) :: name
    type(rdma_window), intent(out) :: window
    integer(c_int), value :: timeout_ms
    integer(c_int) :: code
    code = c_rdmaConnLookup(conn, trim(name)//c_null_char, window, timeout_ms)
  end function

  ! --- registered memory --------------------------------------------------------------------------------------------

  ! The address of a variable, for `local_addr` of rdmaSync..., rdmaStart... and rdmaPA....
  function rdmaAddress(variable) result(address)
    type(*), dimension(..), intent(in), target :: variable
    integer(c_int64_t) :: address
    address = transfer(c_loc(variable), address)
  end function

  function memory_of(from) result(memory)
    type(c_ptr), intent(in) :: from
    type(rdma_memory), pointer :: memory
    nullify (memory)
    if (c_associated(from)) call c_f_pointer(from, memory)
  end function

  function rdmaConnWindowMemory(conn) result(memory)
    type(rdma_conn), value :: conn
    type(rdma_memory), pointer :: memory
    memory => memory_of(c_rdmaConnWindowMemory(conn))
  end function

  function rdmaConnRegMem(conn, size) result(memory)
    type(rdma_conn), value :: conn
    integer(c_size_t), value :: size
    type(rdma_memory), pointer :: memory
    memory => memory_of(c_rdmaConnRegMem(conn, size))
  end function

  function rdmaServerRegMem(listener, size) result(memory)
    type(rdma_listener), value :: listener
    integer(c_size_t), value :: size
    type(rdma_memory), pointer :: memory
    memory => memory_of(c_rdmaServerRegMem(listener, size))
  end function

  function rdmaConnRegister(conn, addr, length, access) result(memory)
    type(rdma_conn), value :: conn
    type(c_ptr), value :: addr
    integer(c_size_t), value :: length
    integer(c_int), value :: access
    type(rdma_memory), pointer :: memory
    memory => memory_of(c_rdmaConnRegister(conn, addr, length, access))
  end function

  function rdmaServerRegister(listener, addr, length, access) result(memory)
    type(rdma_listener), value :: listener
    type(c_ptr), value :: addr
    integer(c_size_t), value :: length
    integer(c_int), value :: access
    type(rdma_memory), pointer :: memory
    memory => memory_of(c_rdmaServerRegister(listener, addr, length, access))
  end function

  ! --- the mesh -----------------------------------------------------------------------------------------------------

  ! Cause and fix of a code: mesh_error_string in C.
  function mesh_error_text(code) result(text)
    integer(c_int), intent(in) :: code
    character(len=:), allocatable :: text
    text = text_of(c_mesh_error_string(code))
  end function

  function mesh_error_detail() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_mesh_error_detail())
  end function

  subroutine mesh_options_init(options)
    type(mesh_options_t), intent(out) :: options
    type(c_mesh_options) :: c
    if (c_mesh_options_init(c) /= MESH_OK) return ! It refuses null only.
    options%id = c%id
    options%processes = c%processes
    options%threads = c%threads
    options%port = c%port
    options%message_bytes = c%message_bytes
    options%depth = c%depth
    options%operations = c%operations
    options%reservations = c%reservations
    options%batch = c%batch
    options%wait = c%wait
    options%spin_us = c%spin_us
    options%join_timeout_ms = c%join_timeout_ms
    options%incarnation = c%incarnation
  end subroutine

  function mesh_carrier_directory(directory, job, carrier) result(code)
    character(len=*), intent(in) :: directory, job
    type(mesh_carrier_t), intent(out) :: carrier
    integer(c_int) :: code
    code = c_mesh_carrier_directory(trim(directory)//c_null_char, trim(job)//c_null_char, carrier)
  end function

  ! hosts(1) is process 0's.
  function mesh_carrier_hosts(hosts, carrier) result(code)
    character(len=*), intent(in) :: hosts(:)
    type(mesh_carrier_t), intent(out) :: carrier
    integer(c_int) :: code
    character(kind=c_char, len=len(hosts) + 1), target :: texts(size(hosts))
    type(c_ptr) :: list(size(hosts))
    integer :: i
    do i = 1, size(hosts)
      texts(i) = trim(hosts(i))//c_null_char
      list(i) = c_loc(texts(i))
    end do
    code = c_mesh_carrier_hosts(list, size(list, kind=c_size_t), carrier)
  end function

  function mesh_carrier_gather(processes, gather, context, carrier) result(code)
    integer(c_int), value :: processes
    procedure(mesh_all_gather_procedure) :: gather
    type(c_ptr), value :: context
    type(mesh_carrier_t), intent(out) :: carrier
    integer(c_int) :: code
    code = c_mesh_carrier_gather(processes, c_funloc(gather), context, carrier)
  end function

  function mesh_join(options, carrier, mesh) result(code)
    type(mesh_options_t), intent(in), target :: options
    type(mesh_carrier_t), value :: carrier
    type(mesh_t), intent(out) :: mesh
    integer(c_int) :: code
    character(kind=c_char, len=:), allocatable, target :: job, device, address, key_file
    type(c_mesh_options) :: c
    job = trim(options%job)//c_null_char
    device = trim(options%device)//c_null_char
    address = trim(options%address)//c_null_char
    key_file = trim(options%key_file)//c_null_char
    c%id = options%id
    c%processes = options%processes
    c%threads = options%threads
    c%job = c_loc(job)
    c%device = c_loc(device)
    c%address = c_loc(address)
    c%port = options%port
    c%message_bytes = options%message_bytes
    c%depth = options%depth
    c%operations = options%operations
    c%reservations = options%reservations
    c%batch = options%batch
    c%wait = options%wait
    c%spin_us = options%spin_us
    c%join_timeout_ms = options%join_timeout_ms
    call list_to_c(options%allowed_uids, c%allowed_uids, c%allowed_uid_count)
    c%key_file = c_loc(key_file)
    c%incarnation = options%incarnation
    code = c_mesh_join(c, carrier, mesh)
  end function

  function mesh_description(mesh) result(text)
    type(mesh_t), value :: mesh
    character(len=:), allocatable :: text
    text = text_of(c_mesh_description(mesh))
  end function

  function mesh_publish(mesh, name, memory, bytes) result(code)
    type(mesh_t), value :: mesh
    character(len=*), intent(in) :: name
    type(c_ptr), value :: memory
    integer(c_size_t), value :: bytes
    integer(c_int) :: code
    code = c_mesh_publish(mesh, trim(name)//c_null_char, memory, bytes)
  end function

  ! .false. also if there can be no such peer; mesh_error_detail says so.
  function mesh_is_here(lane, peer) result(is)
    type(mesh_lane_t), value :: lane
    integer(c_int), value :: peer
    logical :: is
    is = c_mesh_is_here(lane, peer) == 1
  end function

  function mesh_send(lane, peer, message, bytes, cookie) result(code)
    type(mesh_lane_t), value :: lane
    integer(c_int), value :: peer
    type(*), dimension(..), intent(in), target, contiguous :: message
    integer(c_size_t), value :: bytes
    integer(c_int64_t), value :: cookie
    integer(c_int) :: code
    code = c_mesh_send(lane, peer, c_loc(message), bytes, cookie)
  end function

  function mesh_send_imm(lane, peer, message, bytes, cookie, immediate) result(code)
    type(mesh_lane_t), value :: lane
    integer(c_int), value :: peer
    type(*), dimension(..), intent(in), target, contiguous :: message
    integer(c_size_t), value :: bytes
    integer(c_int64_t), value :: cookie
    integer(c_int32_t), value :: immediate
    integer(c_int) :: code
    code = c_mesh_send_imm(lane, peer, c_loc(message), bytes, cookie, immediate)
  end function

  function mesh_find(lane, peer, name, timeout_ms, window) result(code)
    type(mesh_lane_t), value :: lane
    integer(c_int), value :: peer
    character(len=*), intent(in) :: name
    integer(c_int), value :: timeout_ms
    type(mesh_window_t), intent(out) :: window
    integer(c_int) :: code
    code = c_mesh_find(lane, peer, trim(name)//c_null_char, timeout_ms, window)
  end function

  ! out(1) and following get at most size(out) completions.
  function mesh_poll(lane, out, which) result(count)
    type(mesh_lane_t), value :: lane
    type(mesh_completion_t), intent(inout), contiguous :: out(:)
    integer(c_int), value :: which
    integer(c_int) :: count
    count = c_mesh_poll(lane, out, size(out, kind=c_size_t), which)
  end function

  function mesh_wait(lane, out, which, timeout_ms) result(count)
    type(mesh_lane_t), value :: lane
    type(mesh_completion_t), intent(inout), contiguous :: out(:)
    integer(c_int), value :: which
    integer(c_int), value :: timeout_ms
    integer(c_int) :: count
    count = c_mesh_wait(lane, out, size(out, kind=c_size_t), which, timeout_ms)
  end function

  function mesh_gather(lane, mine, bytes_each, all, timeout_ms) result(code)
    type(mesh_lane_t), value :: lane
    type(*), dimension(..), intent(in), target, contiguous :: mine
    integer(c_size_t), value :: bytes_each
    type(*), dimension(..), intent(inout), target, contiguous :: all
    integer(c_int), value :: timeout_ms
    integer(c_int) :: code
    code = c_mesh_gather(lane, c_loc(mine), bytes_each, c_loc(all), timeout_ms)
  end function

  ! --- the store ----------------------------------------------------------------------------------------------------

  ! Cause and fix of a code: kv_error_string in C.
  function kv_error_text(code) result(text)
    integer(c_int), intent(in) :: code
    character(len=:), allocatable :: text
    text = text_of(c_kv_error_string(code))
  end function

  function kv_error_detail() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_kv_error_detail())
  end function

  subroutine kv_client_options_init(options)
    type(kv_client_options_t), intent(out) :: options
    type(c_kv_client_options) :: c
    if (c_kv_client_options_init(c) /= KV_OK) return ! It refuses null only.
    options%gid_index = c%gid_index
    options%connect_timeout_ms = c%connect_timeout_ms
    options%timeout_ms = c%timeout_ms
    options%depth = c%depth
    options%buffer_bytes = c%buffer_bytes
    options%spin_us = c%spin_us
    options%lookup = c%lookup
    options%known_locations = c%known_locations
    options%read_only = c%read_only
  end subroutine

  ! The arguments must outlive the result. The texts end with a null character.
  function c_kv_client_options_of(options, device, key_file, key_name) result(c)
    type(kv_client_options_t), intent(in), target :: options
    character(kind=c_char, len=*), intent(in), target :: device, key_file, key_name
    type(c_kv_client_options) :: c
    c%device = c_loc(device)
    c%gid_index = options%gid_index
    c%connect_timeout_ms = options%connect_timeout_ms
    c%timeout_ms = options%timeout_ms
    c%depth = options%depth
    c%buffer_bytes = options%buffer_bytes
    c%spin_us = options%spin_us
    c%key_file = c_loc(key_file)
    c%key_name = c_loc(key_name)
    c%lookup = options%lookup
    c%known_locations = options%known_locations
    c%read_only = options%read_only
    call list_to_c(options%allowed_uids, c%allowed_uids, c%allowed_uid_count)
  end function

  function kv_client_set_options(client, options) result(code)
    type(kv_client_t), value :: client
    type(kv_client_options_t), intent(in), target :: options
    integer(c_int) :: code
    character(kind=c_char, len=:), allocatable, target :: device, key_file, key_name
    device = trim(options%device)//c_null_char
    key_file = trim(options%key_file)//c_null_char
    key_name = trim(options%key_name)//c_null_char
    code = c_kv_client_set_options(client, c_kv_client_options_of(options, device, key_file, key_name))
  end function

  function kv_client_connect(client, ip, port) result(code)
    type(kv_client_t), value :: client
    character(len=*), intent(in) :: ip
    integer(c_int), value :: port
    integer(c_int) :: code
    code = c_kv_client_connect(client, trim(ip)//c_null_char, port)
  end function

  ! `device` '' is that of the options.
  function kv_client_connect_socket(client, ip, port, device) result(code)
    type(kv_client_t), value :: client
    character(len=*), intent(in) :: ip
    integer(c_int), value :: port
    character(len=*), intent(in) :: device
    integer(c_int) :: code
    if (device == '') then
      code = c_kv_client_connect_socket(client, trim(ip)//c_null_char, port)
    else
      code = c_kv_client_connect_socket(client, trim(ip)//c_null_char, port, trim(device)//c_null_char)
    end if
  end function

  function kv_client_put(client, key, klen, value, vlen) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: key
    integer(c_size_t), value :: klen
    type(*), dimension(..), intent(in), target, contiguous :: value
    integer(c_size_t), value :: vlen
    integer(c_int) :: code
    code = c_kv_client_put(client, c_loc(key), klen, c_loc(value), vlen)
  end function

  function kv_client_get(client, key, klen, buf, len) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: key
    integer(c_size_t), value :: klen
    type(*), dimension(..), intent(inout), target, contiguous :: buf
    integer(c_size_t), intent(inout) :: len
    integer(c_int) :: code
    code = c_kv_client_get(client, c_loc(key), klen, c_loc(buf), len)
  end function

  function kv_client_get_version(client, key, klen, buf, len, version) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: key
    integer(c_size_t), value :: klen
    type(*), dimension(..), intent(inout), target, contiguous :: buf
    integer(c_size_t), intent(inout) :: len
    integer(c_int64_t), intent(out), optional :: version
    integer(c_int) :: code
    code = c_kv_client_get_version(client, c_loc(key), klen, c_loc(buf), len, version)
  end function

  function kv_client_cas(client, key, klen, expected, value, vlen, version) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: key
    integer(c_size_t), value :: klen
    integer(c_int64_t), value :: expected
    type(*), dimension(..), intent(in), target, contiguous :: value
    integer(c_size_t), value :: vlen
    integer(c_int64_t), intent(inout), optional :: version
    integer(c_int) :: code
    code = c_kv_client_cas(client, c_loc(key), klen, expected, c_loc(value), vlen, version)
  end function

  function kv_client_delete(client, key, klen) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: key
    integer(c_size_t), value :: klen
    integer(c_int) :: code
    code = c_kv_client_delete(client, c_loc(key), klen)
  end function

  function kv_client_cell_open(client, key, klen, initial, cell) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: key
    integer(c_size_t), value :: klen
    integer(c_int64_t), value :: initial
    type(kv_cell_t), intent(out) :: cell
    integer(c_int) :: code
    code = c_kv_client_cell_open(client, c_loc(key), klen, initial, cell)
  end function

  function kv_client_put_ttl(client, key, klen, value, vlen, ttl_ms) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: key
    integer(c_size_t), value :: klen
    type(*), dimension(..), intent(in), target, contiguous :: value
    integer(c_size_t), value :: vlen
    integer(c_int64_t), value :: ttl_ms
    integer(c_int) :: code
    code = c_kv_client_put_ttl(client, c_loc(key), klen, c_loc(value), vlen, ttl_ms)
  end function

  function kv_client_get_ttl(client, key, klen, left_ms) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: key
    integer(c_size_t), value :: klen
    integer(c_int64_t), intent(out) :: left_ms
    integer(c_int) :: code
    code = c_kv_client_get_ttl(client, c_loc(key), klen, left_ms)
  end function

  function kv_client_keys(client, prefix, plen, cursor, page) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: prefix
    integer(c_size_t), value :: plen
    type(kv_cursor_t), intent(inout) :: cursor
    type(kv_key_page_t), intent(out) :: page
    integer(c_int) :: code
    code = c_kv_client_keys(client, c_loc(prefix), plen, cursor, page)
  end function

  function kv_client_flush(client, prefix, plen, erased) result(code)
    type(kv_client_t), value :: client
    type(*), dimension(..), intent(in), target, contiguous :: prefix
    integer(c_size_t), value :: plen
    integer(c_int64_t), intent(out), optional :: erased
    integer(c_int) :: code
    code = c_kv_client_flush(client, c_loc(prefix), plen, erased)
  end function

  function kv_client_get_items(client, items) result(code)
    type(kv_client_t), value :: client
    type(kv_get_item_t), intent(inout), contiguous :: items(:)
    integer(c_int) :: code
    code = c_kv_client_get_items(client, items, size(items, kind=c_size_t))
  end function

  function kv_client_put_items(client, items) result(code)
    type(kv_client_t), value :: client
    type(kv_put_item_t), intent(inout), contiguous :: items(:)
    integer(c_int) :: code
    code = c_kv_client_put_items(client, items, size(items, kind=c_size_t))
  end function

  function kv_client_put_items_ttl(client, items, ttl_ms) result(code)
    type(kv_client_t), value :: client
    type(kv_put_item_t), intent(inout), contiguous :: items(:)
    integer(c_int64_t), value :: ttl_ms
    integer(c_int) :: code
    code = c_kv_client_put_items_ttl(client, items, size(items, kind=c_size_t), ttl_ms)
  end function

  ! Returns KV_ERR_BAD_ARGUMENT also if the arrays differ in size; so does kv_client_batch_put.
  function kv_client_batch_get(client, keys, klens, values, vlens) result(code)
    type(kv_client_t), value :: client
    type(c_ptr), intent(in), contiguous :: keys(:), values(:)
    integer(c_size_t), intent(in), contiguous :: klens(:)
    integer(c_size_t), intent(inout), contiguous :: vlens(:)
    integer(c_int) :: code
    code = KV_ERR_BAD_ARGUMENT
    if (any([size(klens), size(values), size(vlens)] /= size(keys))) return
    code = c_kv_client_batch_get(client, keys, klens, values, vlens, size(keys, kind=c_size_t))
  end function

  function kv_client_batch_put(client, keys, klens, values, vlens) result(code)
    type(kv_client_t), value :: client
    type(c_ptr), intent(in), contiguous :: keys(:), values(:)
    integer(c_size_t), intent(in), contiguous :: klens(:), vlens(:)
    integer(c_int) :: code
    code = KV_ERR_BAD_ARGUMENT
    if (any([size(klens), size(values), size(vlens)] /= size(keys))) return
    code = c_kv_client_batch_put(client, keys, klens, values, vlens, size(keys, kind=c_size_t))
  end function

  subroutine kv_server_options_init(options)
    type(kv_server_options_t), intent(out) :: options
    type(c_kv_server_options) :: c
    if (c_kv_server_options_init(c) /= KV_OK) return ! It refuses null only.
    options%mode = c%mode
    options%gid_index = c%gid_index
    options%port = c%port
    options%memory_bytes = c%memory_bytes
    options%require_hugepages = c%require_hugepages
    options%workers = c%workers
    options%max_clients = c%max_clients
    options%max_clients_per_user = c%max_clients_per_user
    options%depth = c%depth
    options%max_value_bytes = c%max_value_bytes
    options%lease_bytes = c%lease_bytes
    options%trusted_clients = c%trusted_clients
    options%client_leases = c%client_leases
    options%lease_term_ms = c%lease_term_ms
    options%max_items = c%max_items
    options%checksum_large_values = c%checksum_large_values
    options%grace_ms = c%grace_ms
    options%spin_us = c%spin_us
    options%pin_workers = c%pin_workers
    options%max_cells = c%max_cells
    options%evict = c%evict
  end subroutine

  ! The grants as C takes them. `grants` must outlive them.
  subroutine grants_to_c(grants, c)
    type(kv_grant_t), intent(in), target :: grants(:)
    type(c_kv_grant), intent(out) :: c(:)
    integer :: i
    do i = 1, size(grants)
      c(i)%uid = grants(i)%uid
      c(i)%rights = grants(i)%rights
      c(i)%prefix = c_null_ptr
      c(i)%prefix_length = 0
      if (allocated(grants(i)%prefix)) then
        c(i)%prefix = c_loc(grants(i)%prefix)
        c(i)%prefix_length = len(grants(i)%prefix, kind=c_size_t)
      end if
      c(i)%max_memory_bytes = grants(i)%max_memory_bytes
      c(i)%max_items = grants(i)%max_items
    end do
  end subroutine

  function kv_server_create(options) result(server)
    type(kv_server_options_t), intent(in), target, optional :: options
    type(kv_server_t) :: server
    character(kind=c_char, len=:), allocatable, target :: device, address, key_file
    type(c_kv_grant), allocatable, target :: grants(:)
    type(c_kv_server_options) :: c
    if (.not. present(options)) then
      server = c_kv_server_create()
      return
    end if
    device = trim(options%device)//c_null_char
    address = trim(options%address)//c_null_char
    key_file = trim(options%key_file)//c_null_char
    c%mode = options%mode
    c%device = c_loc(device)
    c%gid_index = options%gid_index
    c%address = c_loc(address)
    c%port = options%port
    c%memory_bytes = options%memory_bytes
    c%require_hugepages = options%require_hugepages
    c%workers = options%workers
    c%max_clients = options%max_clients
    c%max_clients_per_user = options%max_clients_per_user
    c%depth = options%depth
    c%max_value_bytes = options%max_value_bytes
    c%lease_bytes = options%lease_bytes
    c%trusted_clients = options%trusted_clients
    c%client_leases = options%client_leases
    c%lease_term_ms = options%lease_term_ms
    c%max_items = options%max_items
    c%checksum_large_values = options%checksum_large_values
    c%grace_ms = options%grace_ms
    c%spin_us = options%spin_us
    c%pin_workers = options%pin_workers
    c%key_file = c_loc(key_file)
    c%max_cells = options%max_cells
    c%evict = options%evict
    call list_to_c(options%allowed_uids, c%allowed_uids, c%allowed_uid_count)
    c%grants = c_null_ptr
    c%grant_count = 0
    if (allocated(options%grants)) then
      allocate (grants(size(options%grants)))
      call grants_to_c(options%grants, grants)
      if (size(grants) > 0) c%grants = c_loc(grants)
      c%grant_count = size(grants, kind=c_size_t)
    end if
    server = c_kv_server_create(c)
  end function

  function kv_open(server, handle) result(code)
    character(len=*), intent(in) :: server
    type(kv_client_t), intent(out) :: handle
    integer(c_int) :: code
    code = c_kv_open(trim(server)//c_null_char, handle%handle)
  end function

  function kv_open_with(server, mode, options, handle) result(code)
    character(len=*), intent(in) :: server
    integer(c_int), value :: mode
    type(kv_client_options_t), intent(in), target :: options
    type(kv_client_t), intent(out) :: handle
    integer(c_int) :: code
    character(kind=c_char, len=:), allocatable, target :: device, key_file, key_name
    device = trim(options%device)//c_null_char
    key_file = trim(options%key_file)//c_null_char
    key_name = trim(options%key_name)//c_null_char
    code = c_kv_open_with(trim(server)//c_null_char, mode, &
                          c_kv_client_options_of(options, device, key_file, key_name), handle%handle)
  end function

  function kv_set(handle, key, value) result(code)
    type(kv_client_t), value :: handle
    character(len=*), intent(in) :: key, value
    integer(c_int) :: code
    code = c_kv_set(handle%handle, trim(key)//c_null_char, value//c_null_char)
  end function

  ! `value` is unallocated on failure.
  function kv_get(handle, key, value) result(code)
    type(kv_client_t), value :: handle
    character(len=*), intent(in) :: key
    character(len=:), allocatable, intent(out) :: value
    integer(c_int) :: code
    type(c_ptr) :: copy
    code = c_kv_get(handle%handle, trim(key)//c_null_char, copy)
    if (code /= KV_OK) return
    value = text_of(copy)
    call c_kv_release(copy)
  end function

  function kv_close(handle) result(code)
    type(kv_client_t), value :: handle
    integer(c_int) :: code
    code = c_kv_close(handle%handle)
  end function
end module verbena
