// SPDX-License-Identifier: Apache-2.0
// Two compute tiles keep half of a vector each in their scratchpads; both read all of it through a distributed view and
// write it out reversed by halves.

#all = affine_set<(d0) : (d0 >= 0, -d0 + 255 >= 0)>
#low = affine_set<(d0) : (d0 >= 0, -d0 + 127 >= 0)>
#high = affine_set<(d0) : (d0 - 128 >= 0, -d0 + 255 >= 0)>
#out = affine_set<(d0, d1) : (d0 >= 0, -d0 + 1 >= 0, d1 >= 0, -d1 + 255 >= 0)>
#row = affine_set<(d0, d1) : (d0 == 0, d1 >= 0, -d1 + 255 >= 0)>
#order = affine_map<(d0) -> (d0)>
#order2 = affine_map<(d0, d1) -> (d0, d1)>

func.func @distributed(%x: index, %y: index) attributes {grid = [2]} {
  %c0 = arith.constant 0 : index
  %c128 = arith.constant 128 : index
  %id = ktdp.get_compute_tile_id : index
  %start = arith.muli %id, %c128 : index
  %X = ktdp.construct_memory_view %x, sizes: [256], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<256xf16>
  %Y = ktdp.construct_memory_view %y, sizes: [2, 256], strides: [256, 1] {coordinate_set = #out, memory_space = #ktdp.memory_space<global>} : memref<2x256xf16>
  %own = ktdp.construct_memory_view %c0, sizes: [128], strides: [1] {coordinate_set = #low, memory_space = #ktdp.memory_space<ct_local>} : memref<128xf16>
  %xt = ktdp.construct_access_tile %X[%start] {access_tile_set = #low, access_tile_order = #order} : memref<256xf16> -> <128xindex>
  %v = ktdp.load %xt : <128xindex> -> tensor<128xf16>
  %ot = ktdp.construct_access_tile %own[%c0] {access_tile_set = #low, access_tile_order = #order} : memref<128xf16> -> <128xindex>
  ktdp.store %v, %ot : tensor<128xf16>, <128xindex>
  %p = ktdp.construct_memory_view %c0, sizes: [128], strides: [1] {coordinate_set = #low, memory_space = #ktdp.memory_space<ct_local, ct_id = 1>} : memref<128xf16, #ktdp.memory_space<ct_local, ct_id = 1>>
  %q = ktdp.construct_memory_view %c0, sizes: [128], strides: [1] {coordinate_set = #high, memory_space = #ktdp.memory_space<ct_local, ct_id = 0>} : memref<128xf16, #ktdp.memory_space<ct_local, ct_id = 0>>
  %d = ktdp.construct_distributed_memory_view (%p, %q : memref<128xf16, #ktdp.memory_space<ct_local, ct_id = 1>>, memref<128xf16, #ktdp.memory_space<ct_local, ct_id = 0>>) : memref<256xf16>
  %dt = ktdp.construct_access_tile %d[%c0] {access_tile_set = #all, access_tile_order = #order} : memref<256xf16> -> <256xindex>
  %w = ktdp.load %dt : <256xindex> -> tensor<256xf16>
  %w2 = tensor.expand_shape %w [[0, 1]] output_shape [1, 256] : tensor<256xf16> into tensor<1x256xf16>
  %yt = ktdp.construct_access_tile %Y[%id, %c0] {access_tile_set = #row, access_tile_order = #order2} : memref<2x256xf16> -> <1x256xindex>
  ktdp.store %w2, %yt : tensor<1x256xf16>, <1x256xindex>
  return
}
