import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
import traceback

_setup_privateuseone_for_python_backend("fakegpu")
aten = torch.ops.aten

class GpuTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, held):
        t = torch.Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype, device="fakegpu:0")
        t.held = held
        return t
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

def run(func, args, kwargs):
    flat, spec = pytree.tree_flatten((args, kwargs))
    wrappers = {id(x.held): x for x in flat if isinstance(x, GpuTensor)}
    device = kwargs.get("device")
    on_gpu = device.type != "cpu" if device is not None else bool(wrappers)
    print(func, on_gpu)
    h = lambda x: x.held if isinstance(x, GpuTensor) else torch.device("cpu") if isinstance(x, torch.device) else x
    a, k = pytree.tree_unflatten([h(x) for x in flat], spec)
    if "pin_memory" in k: k = k | {"pin_memory": False}
    out = func(*a, **k)
    if not on_gpu: return out
    return pytree.tree_map_only(torch.Tensor, lambda t: wrappers.get(id(t)) if id(t) in wrappers else GpuTensor(t), out)

class FakeGpu(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})

if __name__ == "__main__":
    from lib.dqn_model import DQN, adam
    import copy
    with FakeGpu():
        net = DQN((4,84,84),6)
        print(type(net), net.conv[0].weight.device)
        net = net.to("fakegpu")
        print(net.conv[0].weight.device)
        n2 = copy.deepcopy(net)
        print(type(n2.conv[0].weight), n2.conv[0].weight.stride())
        opt = adam(net, 1e-3)
        loss = net(torch.zeros(3,4,84,84,dtype=torch.uint8,device="fakegpu")).sum()
        loss.backward()
        opt.step()
        n2.load_state_dict(net.state_dict())
        print(loss.item(), loss.cpu())
