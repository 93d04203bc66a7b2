! The blocking C API of verbena/rdma.h, verbena/version.h and verbena/log.h for Fortran 2018, under the same names. The
! C headers document what each call does and returns. A compiled module works with one version of one compiler only, so
! this file is installed as source; compile it with your program:
!   gfortran $(pkg-config --variable=fortran verbena) hello.f90 $(pkg-config --cflags --libs verbena)
!
! Differences from C:
!  - Handles are type(rdma_conn), type(rdma_listener) and type(rdma_node). Fortran ignores the case of names.
!  - Text is character(*) without a null character at its end; '' stands for C's null.
!  - Data is a variable of any type and rank, followed by its length in bytes, as c_sizeof returns it:
!    rdmaConnSend(conn, a, c_sizeof(a)). The compiler copies an array section that is not contiguous. Declare a variable
!    as target and volatile if the peer reads or writes it in place, or if you poll it.
!  - rdmaErrorText (rdmaErrorString in C), rdmaErrorDetail, rdmaServerAddress and verbena_version return allocatable
!    text.
!  - Lists, such as allowed_uids, are allocatable arrays and need no count.
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
    ! `line` is C text, which ends with a null character; verbenaLogLine(line) returns it as Fortran text.
    subroutine verbena_log_procedure(level, line, user) bind(C)
      import :: c_int, c_ptr
      integer(c_int), value :: level
      type(c_ptr), value :: line
      type(c_ptr), value :: user
    end subroutine
  end interface
  public :: rdma_conn_procedure, rdma_message_procedure, rdma_disconnect_procedure, rdma_completion_procedure, &
    verbena_log_procedure

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
      integer(c_int64_t), intent(out) :: old
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
      integer(c_int64_t), intent(out) :: old
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
end module verbena
